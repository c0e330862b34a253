"""Compiles encoders: one Python function per message and version, fixed fields written in runs.

Records are not copied, unless they are small: they stand in the list of buffers between what was written before
and behind them.

Compiles decoders: one Python function per message and version, fixed fields read in runs.

Lengths are not checked one by one. A slice that reaches over the end is short, what is read behind the end raises,
and the end itself is looked at once, so nothing torn is given out. The number of all elements is bounded by the
bytes of the message, and by a fixed number.

Python source that is written line by line, with its constants, and compiled to one function.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct, pack, unpack_from
from typing import Any

from weir.model.ids import Buffer
from weir.wire.kafka import primitives
from weir.wire.kafka.classes import CLASSES, Message
from weir.wire.kafka.schema.layout import Field, Layout, Structure


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


_DECODING_CONSTANTS: dict[str, object] = {
    "more": primitives.more,
    "skip_tags": primitives.skip_tags,
    "null_refused": primitives.null_refused,
    "too_many": primitives.too_many,
    "overrun": primitives.overrun,
    "NO_UUID": primitives.NO_UUID,
    "read_uvarint": primitives.read_uvarint,
    "unpack_from": unpack_from,
}


def decoder(layout: Layout, version: int) -> Callable[[memoryview], Message]:
    """The function that decodes the message out of a view of all its bytes."""
    return _Decoder(layout, version).source().compiled("decode", f"decode {layout.name} v{version}")


class _Decoder:
    def __init__(self, layout: Layout, version: int) -> None:
        self._layout = layout
        self._version = version
        self._flexible = layout.is_flexible(version)
        self._source = Source("def decode(data):", _DECODING_CONSTANTS)
        #: Fixed fields that are read with the next `unpack_from`: struct letter and variable.
        self._run: list[tuple[str, str]] = []

    def source(self) -> Source:
        is_response = self._layout.name.endswith("Response")
        most = primitives.MAX_RESPONSE_ELEMENTS if is_response else primitives.MAX_REQUEST_ELEMENTS
        self._source.add("at, end = 0, len(data)", f"room = end if end < {most} else {most}")
        made = self._structure(self._layout.body, CLASSES[self._layout.name])
        with self._source.block("if at > end:"):
            self._source.add(f"raise overrun({self._layout.name!r})")
        self._source.add(f"return {made}")
        return self._source

    def _structure(self, structure: Structure, kind: type[Message]) -> str:
        """Read a struct; an expression that makes it."""
        present = [field for field in structure.fields if self._version in field.versions]
        values = {field.name: self._source.name(field.name) for field in present}
        for field in present:
            if field.tag is None:
                self._field(field, values[field.name])
        if self._flexible:
            self._tags(present, values)
        self._flush()
        arguments = [values.get(field.name, self._default(field)) for field in structure.fields]
        while arguments and structure.fields[len(arguments) - 1].name not in values:
            arguments.pop()  # the class knows its defaults, and is faster at them
        return f"{self._source.constant(structure.name, kind)}({', '.join(arguments)})"

    def _default(self, field: Field) -> str:
        if field.default == ():
            return "[]"
        return "NO_UUID" if field.kind == "uuid" else repr(field.default)

    # --- runs ---------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        if self._run:
            letters = "".join(letter for letter, _ in self._run)
            names = ", ".join(name for _, name in self._run)
            self._source.add(f"{names}, = {self._source.struct(letters, 'unpack_from')}(data, at)")
            self._source.add(f"at += {primitives.size(letters)}")
            self._run = []

    def _length(self, kind: str) -> str:
        """Read a length, with the run before it; the variable that holds it, negative for null."""
        count = self._source.name("n")
        self._run.append(("B" if self._flexible else primitives.LENGTHS[kind], count))
        self._flush()
        if self._flexible:
            with self._source.block(f"if {count} > 127:"):
                self._source.add(f"{count}, at = more(data, at, {count})")
            self._source.add(f"{count} -= 1")
        return count

    def _take(self, count: str, name: str) -> None:
        """Refuse more elements than there is room for."""
        self._source.add(f"room -= {count}")
        with self._source.block("if room < 0:"):
            self._source.add(f"raise too_many('{self._layout.name}: {name}')")

    # --- fields -------------------------------------------------------------------------------------------

    def _field(self, field: Field, value: str) -> None:
        letter = primitives.FIXED.get(field.kind)
        if letter is not None and not field.array:
            self._run.append((letter, value))
            return
        count = self._length("array" if field.array else field.kind)
        with self._source.block(f"if {count} < 0:"):
            if field.nullable is not None and self._version in field.nullable:
                self._source.add(f"{value} = None")
            else:
                self._source.add(f"raise null_refused('{self._layout.name}: {field.name}')")
        with self._source.block("else:"):
            if field.array:
                self._array(field, value, count)
            else:
                self._slice(field.kind, value, count)

    def _slice(self, kind: str, value: str, count: str) -> None:
        self._source.add(f"{count} += at")
        cut = f"data[at:{count}]"
        self._source.add(
            f"{value} = str({cut}, 'utf-8')" if kind == "string" else f"{value} = {cut}", f"at = {count}"
        )

    def _array(self, field: Field, value: str, count: str) -> None:
        self._take(count, field.name)
        letter = primitives.FIXED.get(field.kind)
        if letter is not None and field.kind != "uuid":
            self._source.add(
                f"{value} = list(unpack_from(f'>{{{count}}}{letter}', data, at))",
                f"at += {count} * {primitives.size(letter)}",
            )
            return
        self._source.add(f"{value} = []")
        with self._source.block(f"for _ in range({count}):"):
            self._source.add(f"{value}.append({self._element(field)})")

    def _element(self, field: Field) -> str:
        if field.struct is not None:
            return self._structure(field.struct, vars(CLASSES[self._layout.name])[field.struct.name])
        element = self._source.name(field.name)
        self._field(Field(field.name, field.kind, False, field.versions, None, None, None, None), element)
        self._flush()
        return element

    # --- tagged fields ------------------------------------------------------------------------------------

    def _tags(self, present: list[Field], values: dict[str, str]) -> None:
        tagged = [field for field in present if field.tag is not None]
        count = self._source.name("tags")
        self._run.append(("B", count))
        self._flush()
        for field in tagged:
            self._source.add(f"{values[field.name]} = {self._default(field)}")
        with self._source.block(f"if {count}:"):
            with self._source.block(f"if {count} > 127:"):
                self._source.add(f"{count}, at = more(data, at, {count})")
            self._take(count, "tagged fields")
            if not tagged:
                self._source.add(f"at = skip_tags(data, at, {count})")
            else:
                self._known_tags(tagged, values, count)

    def _known_tags(self, tagged: list[Field], values: dict[str, str], count: str) -> None:
        tag, stop = self._source.name("tag"), self._source.name("stop")
        with self._source.block(f"for _ in range({count}):"):
            self._source.add(f"{tag}, at = read_uvarint(data, at)", f"{stop}, at = read_uvarint(data, at)")
            self._source.add(f"{stop} += at")
            for field in tagged:
                with self._source.block(f"if {tag} == {field.tag}:"):
                    self._tagged(field, values[field.name])
                    with self._source.block(f"if at != {stop}:"):
                        # Else the same bytes could be read again and again.
                        self._source.add(f"raise overrun('{self._layout.name}: {field.name}')")
            self._source.add(f"at = {stop}")

    def _tagged(self, field: Field, value: str) -> None:
        if field.struct is not None and not field.array:
            made = self._structure(field.struct, vars(CLASSES[self._layout.name])[field.struct.name])
            self._source.add(f"{value} = {made}")
        else:
            self._field(field, value)
            self._flush()


_CONSTANTS: dict[str, object] = {
    "uvarint": primitives.uvarint,
    "NO_UUID": primitives.NO_UUID,
    "no_uuid": primitives.no_uuid,
    "pack": pack,
}


def encoder(layout: Layout, version: int) -> Callable[[Message], list[Buffer]]:
    """The function that encodes the message to buffers, to be written one after the other."""
    return _Encoder(layout, version).source().compiled("encode", f"encode {layout.name} v{version}")


def _several(records: str) -> str:
    return f"({records}.__class__ is list or {records}.__class__ is tuple)"


class _Encoder:
    def __init__(self, layout: Layout, version: int) -> None:
        self._layout = layout
        self._version = version
        self._flexible = layout.is_flexible(version)
        self._source = Source("def encode(message):", _CONSTANTS)
        #: The variable of the buffer that is being written.
        self._out = "out"
        #: Fixed fields that are written with the next `pack`: struct letter and expression, none for a zero byte.
        self._run: list[tuple[str, str | None]] = []

    def source(self) -> Source:
        self._source.add("out = bytearray()", "pieces = []")
        self._structure(self._layout.body, "message")
        self._flush()
        with self._source.block("if out:"):
            self._source.add("pieces.append(out)")
        self._source.add("return pieces")
        return self._source

    def _structure(self, structure: Structure, value: str) -> None:
        present = [field for field in structure.fields if self._version in field.versions]
        for field in present:
            if field.tag is None:
                self._field(field, f"{value}.{field.name}")
        if self._flexible:
            self._tags(sorted((f for f in present if f.tag is not None), key=lambda f: f.tag or 0), value)

    # --- runs ---------------------------------------------------------------------------------------------

    def _packed(self, run: list[tuple[str, str | None]]) -> str:
        """An expression for the bytes of a run."""
        if all(value is None for _, value in run):
            return repr(bytes(len(run)))
        name = self._source.struct("".join(letter for letter, _ in run), "pack")
        return f"{name}({', '.join(value for _, value in run if value is not None)})"

    def _flush(self) -> None:
        if self._run:
            self._source.add(f"{self._out} += {self._packed(self._run)}")
            self._run = []

    def _length(self, kind: str, count: str) -> None:
        """Write the length in the variable `count`, which is negative for null, with the run before it."""
        if not self._flexible:
            self._run.append((primitives.LENGTHS[kind], count))
            self._flush()
            return
        run, self._run = self._run, []
        with self._source.block(f"if {count} < 127:"):
            self._source.add(f"{self._out} += {self._packed([*run, ('B', f'{count} + 1')])}")
        with self._source.block("else:"):
            before = f"{self._packed(run)} + " if run else ""
            self._source.add(f"{self._out} += {before}uvarint({count} + 1)")

    # --- fields -------------------------------------------------------------------------------------------

    def _field(self, field: Field, value: str) -> None:
        letter = primitives.FIXED.get(field.kind)
        if letter is not None and not field.array:
            if field.kind == "uuid":  # which `struct` would cut or fill
                with self._source.block(f"if len({value}) != 16:"):
                    self._source.add(f"raise no_uuid('{self._layout.name}: {field.name}')")
            self._run.append((letter, value))
        elif field.array:
            self._array(field, value)
        elif field.kind == "records":
            self._records(field, value)
        else:
            self._bytes(field, value)

    def _held(self, field: Field, value: str) -> tuple[str, str]:
        """Variables for a value and its length: -1 for null, which has none where it is not allowed."""
        held, count = self._source.name(field.name), self._source.name("n")
        self._source.add(f"{held} = {value}")
        if field.nullable is not None and self._version in field.nullable:
            with self._source.block(f"if {held} is None:"):
                self._source.add(f"{count} = -1")
            with self._source.block("else:"):
                self._measure(field, held, count)
        else:
            self._measure(field, held, count)
        return held, count

    def _measure(self, field: Field, held: str, count: str) -> None:
        if field.kind == "string" and not field.array:
            self._source.add(f"{held} = {held}.encode()")
        total = f"sum(map(len, {held})) if {_several(held)} else " if field.kind == "records" else ""
        self._source.add(f"{count} = {total}len({held})")

    def _bytes(self, field: Field, value: str) -> None:
        held, count = self._held(field, value)
        self._length(field.kind, count)
        with self._source.block(f"if {count} > 0:"):
            self._source.add(f"{self._out} += {held}")

    def _records(self, field: Field, value: str) -> None:
        """Records may be one buffer, or a list or tuple of them."""
        held, count = self._held(field, value)
        self._length(field.kind, count)
        with self._source.block(f"if {count} > {primitives.SMALL_RECORDS_BYTES}:"):
            self._source.add(f"pieces.append({self._out})", f"{self._out} = bytearray()")
            self._source.add(f"pieces += {held} if {_several(held)} else ({held},)")
        with self._source.block(f"elif {count} > 0:"):
            self._source.add(f"{self._out} += b''.join({held}) if {_several(held)} else {held}")

    def _array(self, field: Field, value: str) -> None:
        held, count = self._held(field, value)
        self._length("array", count)
        letter = primitives.FIXED.get(field.kind)
        with self._source.block(f"if {count} > 0:"):
            if letter is not None and field.kind != "uuid":
                self._source.add(f"{self._out} += pack(f'>{{{count}}}{letter}', *{held})")
                return
            element = self._source.name(field.name)
            with self._source.block(f"for {element} in {held}:"):
                if field.struct is not None:
                    self._structure(field.struct, element)
                else:
                    self._field(
                        Field(field.name, field.kind, False, field.versions, None, None, None, None), element
                    )
                self._flush()

    # --- tagged fields ------------------------------------------------------------------------------------

    def _tags(self, tagged: list[Field], value: str) -> None:
        if not tagged:
            self._run.append(("x", None))
            return
        run, self._run = self._run, []
        said = " or ".join(self._is_set(field, f"{value}.{field.name}") for field in tagged)
        with self._source.block(f"if not ({said}):"):
            self._source.add(f"{self._out} += {self._packed([*run, ('x', None)])}")
        with self._source.block("else:"):
            self._run = run
            self._flush()
            self._known_tags(tagged, value)

    def _known_tags(self, tagged: list[Field], value: str) -> None:
        count, section, outer = self._source.name("tags"), self._source.name("section"), self._out
        self._source.add(f"{count} = 0", f"{section} = bytearray()")
        for field in tagged:
            with self._source.block(f"if {self._is_set(field, f'{value}.{field.name}')}:"):
                self._out = self._source.name("tagged")
                self._source.add(f"{self._out} = bytearray()")
                if field.struct is not None and not field.array:
                    self._structure(field.struct, f"{value}.{field.name}")
                else:
                    self._field(field, f"{value}.{field.name}")
                self._flush()
                self._source.add(
                    f"{count} += 1",
                    f"{section} += uvarint({field.tag}) + uvarint(len({self._out})) + {self._out}",
                )
                self._out = outer
        self._source.add(f"{outer} += uvarint({count})", f"{outer} += {section}")

    def _is_set(self, field: Field, value: str) -> str:
        """An expression: whether a tagged field is not its default."""
        if field.default is None:
            return f"{value} is not None"
        if field.default == ():
            return value
        return f"{value} != {'NO_UUID' if field.kind == 'uuid' else repr(field.default)}"
