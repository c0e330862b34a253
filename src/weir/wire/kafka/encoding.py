"""Compiles encoders: one Python function per message and version, fixed fields written in runs.

Records are not copied, unless they are small: they stand in the list of buffers between what was written before
and behind them.
"""

from collections.abc import Callable
from struct import pack

from weir.model.ids import Buffer
from weir.wire.kafka import primitives
from weir.wire.kafka.classes import Message
from weir.wire.kafka.schema.form import Field, Layout, Structure
from weir.wire.kafka.source import Source

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
