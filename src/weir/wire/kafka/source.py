"""Python source that is written line by line, with its constants, and compiled to one function."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any


class Source:
    """One function in the making."""

    def __init__(self, head: str, constants: dict[str, object]) -> None:
        self._lines = [head]
        self._indent = 1
        self._names = 0
        self._constants = dict(constants)

    def add(self, *lines: str) -> None:
        self._lines += ["    " * self._indent + line for line in lines]

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.add(head)
        self._indent += 1
        yield
        self._indent -= 1

    def name(self, stem: str) -> str:
        """A name of its own for a local variable."""
        self._names += 1
        return f"{stem}{self._names}"

    def constant(self, stem: str, value: object) -> str:
        """The name under which the function finds a value."""
        for known, held in self._constants.items():
            if held is value:
                return known
        name = self.name(stem)
        self._constants[name] = value
        return name

    def struct(self, letters: str, verb: str) -> str:
        """The name of a big-endian Struct's `pack` or `unpack_from`."""
        name = f"{verb}_{letters.replace('?', 'bool')}"
        if name not in self._constants:
            made = Struct(">" + letters)
            self._constants[name] = made.pack if verb == "pack" else made.unpack_from
        return name

    @property
    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def compiled(self, name: str, title: str) -> Callable[..., Any]:
        """The function, whose source is shown under `title` in tracebacks."""
        namespace = dict(self._constants)
        # The source comes from the table alone, never from what a peer sent.
        exec(compile(self.text, f"<{title}>", "exec"), namespace)  # noqa: S102
        made: Callable[..., Any] = namespace[name]  # type: ignore[assignment]
        return made
