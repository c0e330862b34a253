"""Compiles decoders: one Python function per message and version, fixed fields read in runs.

Lengths are not checked one by one. A slice that reaches over the end is short, what is read behind the end raises,
and the end itself is looked at once, so nothing torn is given out. The number of all elements is bounded by the
bytes of the message, and by a fixed number.
"""

from collections.abc import Callable
from struct import unpack_from

from weir.wire.kafka import primitives
from weir.wire.kafka.classes import CLASSES, Message
from weir.wire.kafka.schema.form import Field, Layout, Structure
from weir.wire.kafka.source import Source

_CONSTANTS: dict[str, object] = {
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
        self._source = Source("def decode(data):", _CONSTANTS)
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
