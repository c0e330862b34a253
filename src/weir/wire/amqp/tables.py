"""Field tables: names with typed values, as RabbitMQ reads and writes them.

    table: name shortstr | tag u8 | value ...       array: tag u8 | value ...

RabbitMQ's tags are not those of the specification: `s` is a signed 16-bit number (not a short string), `l` and `L`
are both signed 64-bit, `x` is a byte array. `U`, which some clients write for a signed 16-bit number, is read too.

Typed values of AMQP as text that readers of other protocols understand, and text as values.

Tables as mappings of plain values: what exchanges, queues and policies take.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from struct import Struct
from struct import error as struct_error
from typing import Any, NamedTuple, Union

from weir.model.errors import AmqpError
from weir.model.ids import Buffer
from weir.wire.amqp.frames import ReplyCode

#: How deep tables and arrays may lie in one another, and how many values one table may have with all within it.
MAX_DEPTH = 32
MAX_VALUES = 16_384

#: By tag: `t` bool; `b B s U u I i l L T` int (`T` in seconds since 1970); `f d` float; `D` (scale, unscaled);
#: `S` str, bytes that are no UTF-8 as surrogate escapes; `x` bytes; `A` fields; `F` a table; `V` None.
Value = Union[None, bool, int, float, str, bytes, tuple[int, int], tuple["Field", ...], "Table"]
#: What `Table.of` finds a tag for by itself.
Plain = Union[Value, "Field", Mapping[str, "Plain"], list["Plain"]]


class Field(NamedTuple):
    """A value with the tag that it has on the wire."""

    tag: str
    value: Value


_FIXED = {
    tag: Struct(">" + letter)
    for tag, letter in {
        "t": "?",
        "b": "b",
        "B": "B",
        "s": "h",
        "U": "h",
        "u": "H",
        "I": "i",
        "i": "I",
        "l": "q",
        "L": "q",
        "T": "Q",
        "f": "f",
        "d": "d",
    }.items()
}
_DECIMAL = Struct(">BI")
_SIZE = Struct(">I")
_BY_CODE = {ord(tag): (tag, form) for tag, form in _FIXED.items()}
_SIZED = {ord(tag): tag for tag in "SxAF"}
_TAGS: dict[type, str] = {type(None): "V", bool: "t", int: "I", float: "d", str: "S", bytes: "x"}
_I32 = range(-(1 << 31), 1 << 31)


class Table:
    """Fields in their order; a name may occur twice, and the first one counts. Never changed.

    It keeps the bytes it came as and is equal to a table of the same bytes: it goes out as it came.
    """

    __slots__ = ("_fields", "raw")

    def __init__(self, raw: Buffer = b"") -> None:
        """Of its bytes, without their size; AmqpError if they are no table."""
        self.raw = bytes(raw)
        self._fields = _Reader().table(self.raw, 1) if raw else ()

    @classmethod
    def of(cls, fields: Mapping[str, Plain] | Iterable[tuple[str, Plain]]) -> "Table":
        """Of values: a Field as it says; else bool `t`, int `I` or `l`, float `d`, str `S`, bytes `x`, None `V`,
        lists `A`, tables and mappings `F`."""
        pairs = fields.items() if isinstance(fields, Mapping) else fields
        return cls(b"".join([_name(name) + _tagged(field_of(value)) for name, value in pairs]))

    @property
    def fields(self) -> tuple[tuple[str, Field], ...]:
        return self._fields

    def field(self, name: str) -> Field | None:
        for known, field in self._fields:
            if known == name:
                return field
        return None

    def get(self, name: str) -> Value:
        """The value of that name; None if there is none, or it is void."""
        field = self.field(name)
        return None if field is None else field.value

    def replacing(self, name: str, value: Plain) -> "Table":
        """With this one value under the name, behind all others."""
        return Table.of([*self.without(name).fields, (name, value)])

    def without(self, *names: str) -> "Table":
        return Table.of([(name, field) for name, field in self._fields if name not in names])

    def __contains__(self, name: str) -> bool:
        return self.field(name) is not None

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"Table({self._fields!r})"


def _syntax(what: str) -> AmqpError:
    return AmqpError(what, code=ReplyCode.SYNTAX_ERROR)


class _Reader:
    """Reads one table with all that lies within it."""

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def table(self, raw: bytes, depth: int) -> tuple[tuple[str, Field], ...]:
        found: list[tuple[str, Field]] = []
        at, end = 0, len(raw)
        try:
            while at < end:
                start = at + 1
                at = start + raw[at]
                name = str(raw[start:at], "utf-8", "surrogateescape")
                field, at = self._value(raw, at, depth)
                found.append((name, field))
        except (IndexError, struct_error):
            raise _syntax("a field table ends within a field") from None
        return tuple(found)

    def _array(self, raw: bytes, depth: int) -> tuple[Field, ...]:
        found: list[Field] = []
        at, end = 0, len(raw)
        while at < end:
            field, at = self._value(raw, at, depth)
            found.append(field)
        return tuple(found)

    def _value(self, raw: bytes, at: int, depth: int) -> tuple[Field, int]:
        self._left -= 1
        if self._left < 0:
            raise _syntax(f"a field table has more than {MAX_VALUES} values")
        code = raw[at]
        at += 1
        if code in _SIZED:
            (size,) = _SIZE.unpack_from(raw, at)
            at += 4
            end = at + size
            if end > len(raw):
                raise _syntax(f"a field of {size} bytes lies in a table that has {len(raw) - at}")
            return self._sized(_SIZED[code], raw[at:end], depth), end
        fixed = _BY_CODE.get(code)
        if fixed is not None:
            tag, form = fixed
            return Field(tag, form.unpack_from(raw, at)[0]), at + form.size
        if code == 0x44:  # D
            scale, unscaled = _DECIMAL.unpack_from(raw, at)
            return Field("D", (scale, unscaled)), at + _DECIMAL.size
        if code == 0x56:  # V
            return Field("V", None), at
        raise _syntax(f"a field is of the unknown type {chr(code)!r}")

    def _sized(self, tag: str, inside: bytes, depth: int) -> Field:
        if tag == "S":
            return Field(tag, str(inside, "utf-8", "surrogateescape"))
        if tag == "x":
            return Field(tag, inside)
        if depth >= MAX_DEPTH:
            raise _syntax(f"field tables lie more than {MAX_DEPTH} deep in one another")
        if tag == "A":
            return Field(tag, self._array(inside, depth + 1))
        made = Table()
        made.raw = inside
        made._fields = self.table(inside, depth + 1)
        return Field(tag, made)


# --- to bytes -------------------------------------------------------------------------------------------------


def field_of(value: Plain) -> Field:
    """The value with the tag that RabbitMQ's clients would give it."""
    if isinstance(value, Field):
        return value
    if isinstance(value, list | tuple):
        return Field("A", tuple(field_of(one) for one in value))
    if isinstance(value, Table):
        return Field("F", value)
    if isinstance(value, Mapping):
        return Field("F", Table.of(value))
    tag = _TAGS[type(value)]
    return Field("l" if tag == "I" and value not in _I32 else tag, value)


def _name(name: str) -> bytes:
    try:
        data = name.encode("utf-8", "surrogateescape")
        return bytes((len(data),)) + data
    except ValueError as bad:
        raise AmqpError(f"{name!r} cannot be a field's name: {bad}", code=ReplyCode.INTERNAL_ERROR) from bad


def _tagged(field: Field) -> bytes:
    tag, value = field
    try:
        return tag.encode() + _encoded(tag, value)
    except (struct_error, TypeError, ValueError, OverflowError) as bad:
        raise AmqpError(
            f"{value!r} cannot be a field of type {tag!r}: {bad}", code=ReplyCode.INTERNAL_ERROR
        ) from bad


def _encoded(tag: str, value: Value) -> bytes:
    fixed = _FIXED.get(tag)
    if fixed is not None:
        return fixed.pack(value)
    match tag, value:
        case "V", None:
            return b""
        case "D", (int() as scale, int() as unscaled):
            return _DECIMAL.pack(scale, unscaled)
        case "S", str():
            inside = value.encode("utf-8", "surrogateescape")
        case "x", bytes():
            inside = value
        case "F", Table():
            inside = value.raw
        case "A", tuple():
            inside = b"".join([_tagged(one) for one in value if isinstance(one, Field)])
        case _:
            raise TypeError("it is none")
    return _SIZE.pack(len(inside)) + inside


NO_FIELDS = Table()


def plain_fields(table: Table) -> dict[str, Any]:
    """A table as a mapping of plain values, as exchanges and queues take them; of two fields of one name the first
    counts."""
    found: dict[str, Any] = {}
    for name, field in table.fields:
        found.setdefault(name, _plain_plain(field))
    return found


def _plain_plain(field: Field) -> Any:
    match field.tag, field.value:
        case "T", int(seconds):
            try:
                return datetime.fromtimestamp(seconds, UTC)
            except (OverflowError, ValueError, OSError):
                return seconds
        case "D", (int(scale), int(unscaled)):
            return Decimal(unscaled).scaleb(-scale)
        case "A", tuple(fields):
            return [_plain_plain(one) for one in fields if isinstance(one, Field)]
        case "F", Table() as table:
            return plain_fields(table)
    return field.value


_AS_TEXT: dict[type, Callable[[Any], bytes]] = {
    bytes: bytes,
    str: lambda text: text.encode("utf-8", "surrogateescape"),
    bool: lambda yes: b"true" if yes else b"false",
    int: lambda number: b"%d" % number,
    float: lambda number: repr(number).encode(),
}


def readable(field: Field) -> bytes | None:
    """Strings and bytes as they are, numbers in decimal, `true` and `false`, arrays and tables as JSON."""
    as_text = _AS_TEXT.get(type(field.value))
    if as_text is not None:
        return as_text(field.value)
    plain = _plain(field)
    return plain.encode() if isinstance(plain, str) else None if plain is None else _json(plain)


def readable_name(name: str) -> str:
    """What is no text in a name is replaced."""
    if name.isascii():
        return name
    try:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return name.encode("utf-8", "replace").decode()


def is_text(field: Field) -> bool:
    """Whether the field is what `text_field` makes of its text."""
    return field.tag == "S" and _is_utf8(str(field.value).encode("utf-8", "surrogateescape"))


def text_field(value: bytes | None) -> Field:
    """A header's value: text is a string, and anything else bytes."""
    if value is None:
        return Field("V", None)
    return Field("S", value.decode()) if _is_utf8(value) else Field("x", bytes(value))


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _json(plain: object) -> bytes:
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _plain(field: Field) -> object:
    """As JSON knows it: bytes are base64, a decimal is text."""
    match field.value:
        case Table() as table:
            return {readable_name(name): _plain(one) for name, one in table.fields}
        case (int() as scale, int() as unscaled):
            return str(Decimal(unscaled).scaleb(-scale))
        case tuple() as fields:
            return [_plain(one) for one in fields if isinstance(one, Field)]
        case bytes() as data:
            return b64encode(data).decode()
    return field.value
