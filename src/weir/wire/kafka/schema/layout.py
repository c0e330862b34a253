"""The form in which Kafka's messages are written down here, and its reader.

One line is one field, and what lies in a struct is indented below it:

    name type [versions] [null[:versions]] [=default] [tag:number]

    type      int8 int16 int32 int64 uint16 uint32 float64 bool string bytes records uuid, a struct's name in
              capitals, or one of these behind `[]`; a struct named again has the fields it was first given
    versions  `3+`, `3-12` or `7`: those that have the field; none given: every version that has its parent
    null      may be null, in all or in the given versions
    =default  what a version without the field, or a new message, has; else zero, empty, or null for records
    tag:0     a tagged field: written only where it is not its default
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from weir.model.errors import InvariantError

PRIMITIVES = frozenset(
    (
        "int8",
        "int16",
        "int32",
        "int64",
        "uint16",
        "uint32",
        "float64",
        "bool",
        "string",
        "bytes",
        "records",
        "uuid",
    )
)

#: An array's is the empty tuple.
Default = int | float | bool | str | bytes | tuple[()] | None


@dataclass(frozen=True, slots=True)
class Range:
    """Versions from `low` to `high`, both inside."""

    low: int
    high: int

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.low, self.high + 1))


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct. `kind` is a primitive's name, or a struct's name with `struct` set."""

    name: str
    kind: str
    array: bool
    versions: Range
    nullable: Range | None
    default: Default
    tag: int | None
    struct: "Structure | None"


@dataclass(slots=True)
class Structure:
    """A struct: its name and its fields in the order of the wire."""

    name: str
    fields: list[Field] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Layout:
    """A message: its own fields, and the structs that lie in it under their names."""

    name: str
    versions: Range
    flexible: int | None  # the first version with compact lengths and tagged fields
    body: Structure
    structs: tuple[Structure, ...]

    def is_flexible(self, version: int) -> bool:
        return self.flexible is not None and version >= self.flexible


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its number, and its two messages."""

    key: int
    name: str
    versions: Range
    flexible: int | None
    request: Layout
    response: Layout


def api(key: int, name: str, versions: str, *, flexible: int | None, request: str, response: str) -> Api:
    return Api(
        key,
        name,
        _range(versions, Range(0, 0)),
        flexible,
        layout(name + "Request", versions, request, flexible=flexible),
        layout(name + "Response", versions, response, flexible=flexible),
    )


def layout(name: str, versions: str, text: str, *, flexible: int | None = None) -> Layout:
    """The message that `text` describes."""
    valid = _range(versions, Range(0, 0))
    body = Structure(name)
    structs: dict[str, Structure] = {}
    #: The structs that are open, by how deep their fields are indented.
    open_structs = [(0, body)]
    for line in text.splitlines():
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        if len(open_structs) == 1 and not body.fields:
            open_structs = [(indent, body)]
        if indent > open_structs[-1][0]:
            open_structs.append((indent, _just_named(open_structs[-1][1])))
        while indent < open_structs[-1][0]:
            open_structs.pop()
        open_structs[-1][1].fields.append(_field(line.split(), valid, structs))
    return Layout(name, valid, flexible, body, tuple(structs.values()))


def _just_named(above: Structure) -> Structure:
    named = above.fields[-1].struct
    if named is None or named.fields:
        raise InvariantError(f"fields are indented below {above.fields[-1].name}, which opens no struct")
    return named


def _field(words: list[str], valid: Range, structs: dict[str, Structure]) -> Field:
    name, kind, *rest = words
    array = kind.startswith("[]")
    kind = kind.removeprefix("[]")
    versions, nullable, tag = valid, None, None
    default = () if array else _ZERO.get(kind)
    for word in rest:
        if word == "null":
            nullable = valid
        elif word.startswith("null:"):
            nullable = _range(word[5:], valid)
        elif word.startswith("="):
            default = _default(kind, word[1:])
        elif word.startswith("tag:"):
            tag = int(word[4:])
        else:
            versions = _range(word, valid)
    struct = None
    if kind not in PRIMITIVES:
        struct = structs.setdefault(kind, Structure(kind))
        if not array and tag is None:
            raise InvariantError(f"{name}: a struct outside of an array can only be a tagged field here")
    return Field(name, kind, array, versions, nullable, default, tag, struct)


_ZERO: dict[str, Default] = {
    "bool": False,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "uuid": bytes(16),
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint16", "uint32"), 0),
}


def _default(kind: str, word: str) -> Default:
    if word == "null":
        return None
    if kind == "bool":
        return word == "true"
    return word if kind == "string" else int(word)


def _range(text: str, valid: Range) -> Range:
    if text.endswith("+"):
        return Range(int(text[:-1]), valid.high)
    low, _, high = text.partition("-")
    return Range(int(low), int(high or low))
