"""The form of the table of methods: a class is a method, its annotations are the layout of its arguments.

    class u16 | method u16 | arguments

Consecutive bits share octets, the first one lowest. Reserved arguments are written as zero or empty, and read
past. The codec of every method follows from its class; `weir.wire.amqp.methods` has shorter ways for those that
are sent once per message.
"""

from collections.abc import Callable
from enum import Enum
from struct import Struct
from struct import error as struct_error
from typing import Annotated, Any, ClassVar, TypeVar, dataclass_transform, get_type_hints

from weir.model.errors import AmqpError
from weir.model.ids import value
from weir.wire.amqp.frames import ReplyCode, Role
from weir.wire.amqp.tables import Table


class Wire(Enum):
    """How an argument is written."""

    BIT = "bit"
    OCTET = "octet"
    SHORT = "short"
    LONG = "long"
    LONGLONG = "longlong"
    SHORTSTR = "shortstr"
    LONGSTR = "longstr"
    TABLE = "table"


Bit = Annotated[bool, Wire.BIT]
Octet = Annotated[int, Wire.OCTET]
Short = Annotated[int, Wire.SHORT]
Long = Annotated[int, Wire.LONG]
LongLong = Annotated[int, Wire.LONGLONG]
ShortStr = Annotated[str, Wire.SHORTSTR]
LongStr = Annotated[bytes, Wire.LONGSTR]
FieldTable = Annotated[Table, Wire.TABLE]

_NUMBERS = {
    Wire.OCTET: Struct(">B"),
    Wire.SHORT: Struct(">H"),
    Wire.LONG: Struct(">I"),
    Wire.LONGLONG: Struct(">Q"),
}
_SIZE = Struct(">I")
_IDS = Struct(">HH")
#: What a reserved argument is written as.
_EMPTY: dict[Wire, Any] = {Wire.BIT: False, Wire.SHORT: 0, Wire.SHORTSTR: "", Wire.LONGSTR: b""}


class Method:
    """The base of all methods: a frozen value."""

    __slots__ = ()

    class_id: ClassVar[int]
    method_id: ClassVar[int]
    #: As in the specification: `basic.publish`.
    name: ClassVar[str]
    #: The roles that may receive it.
    receivers: ClassVar[frozenset[Role]]
    #: Whether a content follows: a header frame, and body frames.
    has_content: ClassVar[bool]
    #: The name of an argument, or None for a reserved one, and how it is written.
    layout: ClassVar[tuple[tuple[str | None, Wire], ...]]


M = TypeVar("M", bound=Method)
#: Every method by its two ids, as one number.
METHODS: dict[int, type[Method]] = {}

BY_CLIENT = frozenset({Role.SERVER})
BY_SERVER = frozenset({Role.CLIENT})
BY_BOTH = BY_CLIENT | BY_SERVER


@dataclass_transform(frozen_default=True)
def method(
    class_id: int,
    method_id: int,
    receivers: frozenset[Role],
    *,
    content: bool = False,
    first: tuple[Wire, ...] = (),
    last: tuple[Wire, ...] = (),
) -> Callable[[type[M]], type[M]]:
    """Enter the class into the table. `first` and `last`: reserved arguments around those that it names."""

    def enter(cls: type[M]) -> type[M]:
        made = value(cls)
        hints = get_type_hints(made, include_extras=True)
        named: list[tuple[str | None, Wire]] = [
            (name, hints[name].__metadata__[0])
            for name in made.__dataclass_fields__  # type: ignore[attr-defined]
        ]
        made.class_id, made.method_id = class_id, method_id
        made.name = f"{made.__module__.rpartition('.')[2]}.{_dashed(made.__name__)}"
        made.receivers, made.has_content = receivers, content
        made.layout = (*((None, kind) for kind in first), *named, *((None, kind) for kind in last))
        METHODS[class_id << 16 | method_id] = made
        return made

    return enter


def _dashed(name: str) -> str:
    return "".join(f"-{c.lower()}" if c.isupper() and at else c.lower() for at, c in enumerate(name))


# --- the codec of every method --------------------------------------------------------------------------------


def malformed(cls: type[Method], why: object) -> AmqpError:
    return AmqpError(
        f"the arguments of {cls.name} cannot be decoded: {why}",
        code=ReplyCode.FRAME_ERROR,
        class_id=cls.class_id,
        method_id=cls.method_id,
    )


def decode_any(cls: type[M], data: bytes) -> M:
    """The method whose ids and arguments are `data`."""
    try:
        return _decoded(cls, data)
    except (struct_error, IndexError, UnicodeDecodeError) as bad:
        raise malformed(cls, bad) from bad
    except AmqpError as bad:
        bad.class_id, bad.method_id = cls.class_id, cls.method_id
        raise


def _decoded(cls: type[M], data: bytes) -> M:
    found: list[Any] = []
    at, bit, bits = 4, 8, 0
    for name, kind in cls.layout:
        content: Any
        if kind is Wire.BIT:
            if bit == 8:
                bits, bit = data[at], 0
                at += 1
            content = bool(bits >> bit & 1)
            bit += 1
        else:
            content, at = _argument(kind, data, at)
            bit = 8
        if name is not None:
            found.append(content)
    if at != len(data):
        raise malformed(cls, f"they have {at - 4} bytes, and {len(data) - 4} came")
    return cls(*found)


def _argument(kind: Wire, data: bytes, at: int) -> tuple[Any, int]:
    number = _NUMBERS.get(kind)
    if number is not None:
        return number.unpack_from(data, at)[0], at + number.size
    if kind is Wire.SHORTSTR:
        start = at + 1
        end = start + data[at]
    else:
        start = at + 4
        end = start + _SIZE.unpack_from(data, at)[0]
    if end > len(data):
        raise IndexError(f"{end - start} bytes are announced, and {len(data) - start} are there")
    content = data[start:end]
    if kind is Wire.SHORTSTR:
        return str(content, "utf-8"), end
    return (Table(content) if kind is Wire.TABLE else content), end


def encode_any(method: Method) -> bytes:
    """Ids and arguments."""
    parts = [_IDS.pack(method.class_id, method.method_id)]
    bit, bits = 0, 0
    for name, kind in method.layout:
        content = _EMPTY[kind] if name is None else getattr(method, name)
        if kind is Wire.BIT:
            bits |= bool(content) << bit
            bit += 1
            if bit < 8:
                continue
        if bit:
            parts.append(bytes((bits,)))
            bit = bits = 0
        if kind is not Wire.BIT:
            parts.append(_written(method, name, kind, content))
    if bit:
        parts.append(bytes((bits,)))
    return b"".join(parts)


def _written(method: Method, name: str | None, kind: Wire, content: Any) -> bytes:
    try:
        if kind is Wire.SHORTSTR:
            text: bytes = content.encode()
            return bytes((len(text),)) + text
        if kind in _NUMBERS:
            return _NUMBERS[kind].pack(content)
        data: bytes = content.raw if kind is Wire.TABLE else content
        return _SIZE.pack(len(data)) + data
    except (struct_error, ValueError, TypeError, AttributeError) as bad:
        what = f"{content!r} cannot be {name} of {method.name}: {bad}"
        raise AmqpError(what, code=ReplyCode.INTERNAL_ERROR) from bad
