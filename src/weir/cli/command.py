"""A command group that imports a subcommand only when it runs, and the examples block of a command's help.

Lazy imports keep `weir --help` fast. They also let commands that compose a node live in `weir.server`, the
composition root, which this layer must not import.
"""

import importlib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem


class Lazy(NamedTuple):
    """A command that is not imported yet: its target (`module:attribute`) and its line in the command list."""

    target: str
    help: str
    #: The name that replaces this one: the command works, but lists and completion leave it out.
    renamed: str = ""


class LazyGroup(click.Group):
    """A group with commands given as `module:attribute`, or as `Lazy`, which the help lists without an import."""

    def __init__(
        self,
        *args: object,
        lazy: Mapping[str, str | Lazy] | None = None,
        sections: Mapping[str, Sequence[str]] | None = None,
        **kwargs: object,
    ) -> None:
        """`sections`: the titles of the help page with the commands of each; all others stand at the end."""
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.lazy = dict(lazy or {})
        self.sections = dict(sections or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self.lazy])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = self.lazy.get(cmd_name)
        if found is None:
            return super().get_command(ctx, cmd_name)
        target = found if isinstance(found, str) else found.target
        module, _, attribute = target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{target} is not a command")
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete command names without an import, because the user waits for the answer."""
        named = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [(name, self.lazy.get(name)) for name in named]
        items = [
            CompletionItem(name, help=lazy.help if isinstance(lazy, Lazy) else None)
            for name, lazy in found
            if not (isinstance(lazy, Lazy) and lazy.renamed)
        ]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        names = self.list_commands(ctx)
        near = get_close_matches(name, names, n=1) if name not in names else []
        if near:
            ctx.fail(f"there is no command {name!r} (did you mean {near[0]}?)")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, str] = {}
        for name in self.list_commands(ctx):
            found = self.lazy.get(name)
            if isinstance(found, Lazy):
                if not found.renamed:
                    rows[name] = found.help
            elif (command := self.get_command(ctx, name)) is not None and not command.hidden:
                rows[name] = command.get_short_help_str(formatter.width)
        width = max(map(len, rows), default=0)
        grouped = {name for names in self.sections.values() for name in names}
        others = [name for name in rows if name not in grouped]
        for title, names in (*self.sections.items(), ("Other commands" if self.sections else "Commands", others)):
            if names:
                with formatter.section(title):
                    formatter.write_dl([(name.ljust(width), rows[name]) for name in names])


def examples(*lines: str) -> str:
    """The examples block for `click.command(epilog=...)`."""
    head = "Example:" if len(lines) == 1 else "Examples:"
    return "\n".join(("", "\b", head, *(f"  {line}" for line in lines), ""))
