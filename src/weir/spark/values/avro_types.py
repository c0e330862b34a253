"""Avro definitions of the registry as types: Spark's, Arrow's, and what a decoder has to know.

The compiled loop that reads Avro records: where each field of each value is, or what it is.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t

from weir.model.errors import ConfigError
from weir.spark.records.kernels import Bytes, Ints, compiled, inlined, number, part

_PLAIN: dict[str, tuple[t.DataType, Any]] = {
    "null": (t.NullType(), pa.null()),
    "boolean": (t.BooleanType(), pa.bool_()),
    "int": (t.IntegerType(), pa.int32()),
    "long": (t.LongType(), pa.int64()),
    "float": (t.FloatType(), pa.float32()),
    "double": (t.DoubleType(), pa.float64()),
    "bytes": (t.BinaryType(), pa.binary()),
    "string": (t.StringType(), pa.string()),
    "fixed": (t.BinaryType(), pa.binary()),
    "enum": (t.StringType(), pa.string()),
}
#: As Spark's own Avro reader takes them; other logical types are what they are made of.
_LOGICAL: dict[tuple[str, str], t.DataType] = {
    ("int", "date"): t.DateType(),
    ("long", "timestamp-millis"): t.TimestampType(),
    ("long", "timestamp-micros"): t.TimestampType(),
    ("long", "local-timestamp-millis"): t.TimestampNTZType(),
    ("long", "local-timestamp-micros"): t.TimestampNTZType(),
}
_MAX_DIGITS = 38
#: Which types of a union Python's values tell apart.
_CLASSES = {
    "boolean": "bool",
    "int": "int",
    "long": "int",
    "float": "float",
    "double": "float",
    "bytes": "bytes",
    "fixed": "bytes",
    "string": "str",
    "enum": "str",
    "record": "dict",
    "map": "dict",
    "array": "list",
}
_WIDER = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}


@dataclass(frozen=True, slots=True)
class AvroType:
    """What a value may be. `kind` is Avro's word for it."""

    kind: str
    spark: t.DataType
    #: Which branch of a union of two is null; -1 if it is no such union.
    null_branch: int = -1
    #: Of a record's fields, an array's items, a map's values, a union's branches but null.
    parts: tuple["AvroType", ...] = ()
    #: Of a record's fields.
    names: tuple[str, ...] = ()
    #: An enum's words, in their order.
    symbols: tuple[str, ...] = ()
    logical: str = ""
    #: Of a fixed.
    size: int = 0

    @property
    def decimal(self) -> bool:
        return self.logical == "decimal"

    def walk(self) -> Iterator["AvroType"]:
        """This and all that it is made of."""
        yield self
        for each in self.parts:
            yield from each.walk()

    def class_of(self) -> str:
        """The class of its values in Python, as a union's branches are told apart."""
        return _CLASSES.get(self.kind, self.kind)


def record_type(definition: str, about: str) -> AvroType:
    """The type of a record; ConfigError names what can be no column."""
    try:
        parsed = json.loads(definition)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise ConfigError(f"the schema of {about} is no record", hint="leave valueFormat out and cast the value")
    return _Parser(about).type_of(parsed, "", "")


class _Parser:
    """Knows the types that were given names."""

    def __init__(self, about: str) -> None:
        self._about = about
        #: None while a type is being read: one that contains itself has no end.
        self._named: dict[str, AvroType | None] = {}

    def type_of(self, given: object, namespace: str, path: str) -> AvroType:  # noqa: PLR0911 (one per kind)
        if isinstance(given, list):
            return self._union(given, namespace, path)
        if isinstance(given, str):
            return self._by_name(given, namespace, path)
        if not isinstance(given, dict):
            raise self._unsupported(path, given)
        kind = given.get("type")
        match kind:
            case "record":
                return self._record(given, namespace, path)
            case "array":
                item = self.type_of(given.get("items"), namespace, f"{path}[]")
                if _may_be_empty(item):  # a few bytes could claim any number of them
                    raise self._unsupported(path, given)
                return AvroType("array", t.ArrayType(item.spark), parts=(item,))
            case "map":
                value = self.type_of(given.get("values"), namespace, f"{path}{{}}")
                return AvroType("map", t.MapType(t.StringType(), value.spark), parts=(value,))
            case "enum" | "fixed":
                return self._name(given, namespace, self._leaf(given, str(kind), path))
            case str() if kind in _PLAIN:
                return self._leaf(given, kind, path)
            case _:  # a type within a type
                return self.type_of(kind, namespace, path)

    def _leaf(self, given: dict[str, Any], kind: str, path: str) -> AvroType:
        spark, logical = _PLAIN[kind][0], str(given.get("logicalType", ""))
        size, symbols = given.get("size", 0), tuple(map(str, given.get("symbols", ())))
        if type(size) is not int or size < 0 or (kind == "enum" and not symbols):
            raise self._unsupported(path, given)
        if logical == "decimal" and kind in ("bytes", "fixed"):
            digits, scale = given.get("precision"), given.get("scale", 0)
            if type(digits) is int and type(scale) is int and 0 <= scale <= digits <= _MAX_DIGITS and digits:
                return AvroType(kind, t.DecimalType(digits, scale), logical=logical, size=size)
        if (kind, logical) in _LOGICAL:
            return AvroType(kind, _LOGICAL[kind, logical], logical=logical)
        return AvroType(kind, spark, symbols=symbols, size=size)

    def _record(self, given: dict[str, Any], namespace: str, path: str) -> AvroType:
        full = _full_name(given, namespace)
        self._named[full] = None
        inner = full.rpartition(".")[0]
        names, parts = [], []
        for field in given.get("fields", ()):
            if not isinstance(field, dict) or not isinstance(field.get("name"), str):
                raise self._unsupported(path, given)
            names.append(field["name"])
            parts.append(self.type_of(field.get("type"), inner, f"{path}.{field['name']}".lstrip(".")))
        spark = t.StructType([t.StructField(name, part.spark) for name, part in zip(names, parts, strict=True)])
        return self._name(given, namespace, AvroType("record", spark, parts=tuple(parts), names=tuple(names)))

    def _union(self, given: list[Any], namespace: str, path: str) -> AvroType:
        branches = [self.type_of(one, namespace, path) for one in given]
        others = [one for one in branches if one.kind != "null"]
        if len(others) == 1:
            null = next((at for at, one in enumerate(branches) if one.kind == "null"), -1)
            return (
                replace(others[0], null_branch=null) if len(branches) == 2 else self._united(path, given, others)
            )
        return self._united(path, given, others)

    def _united(self, path: str, given: list[Any], others: list[AvroType]) -> AvroType:
        """Of several types: the wider of two numbers, else a struct with a member for each, as in Spark."""
        wider = _WIDER.get(frozenset(one.kind for one in others))
        if wider is not None and not any(one.logical for one in others):
            return AvroType("wide", _PLAIN[wider][0], logical=wider)
        classes = [one.class_of() for one in others]
        if not others or len(set(classes)) != len(classes) or "union" in classes:
            raise self._unsupported(path, given)
        members = [t.StructField(f"member{at}", one.spark) for at, one in enumerate(others)]
        return AvroType("union", t.StructType(members), parts=tuple(others))

    def _name(self, given: dict[str, Any], namespace: str, made: AvroType) -> AvroType:
        self._named[_full_name(given, namespace)] = made
        return made

    def _by_name(self, name: str, namespace: str, path: str) -> AvroType:
        if name in _PLAIN and name not in ("enum", "fixed"):
            return AvroType(name, _PLAIN[name][0])
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self._named.get(full) or self._named.get(name)
        if found is None:
            raise self._unsupported(path, name)
        return found

    def _unsupported(self, path: str, kind: object) -> ConfigError:
        return ConfigError(
            f"field {path} of the schema of {self._about} has type {json.dumps(kind)}, which can be no column",
            hint="leave valueFormat out, and parse the value in the query",
        )


def _full_name(given: dict[str, Any], namespace: str) -> str:
    name, within = str(given.get("name", "")), str(given.get("namespace", namespace))
    return name if "." in name or not within else f"{within}.{name}"


def _may_be_empty(one: AvroType) -> bool:
    """Whether its values may take no bytes at all."""
    if one.null_branch >= 0:
        return False
    if one.kind == "record":
        return all(map(_may_be_empty, one.parts))
    return one.kind == "null" or (one.kind == "fixed" and not one.size)


def raw_type(one: AvroType, *, text: bool) -> Any:  # noqa: PLR0911 (one per kind)
    """Arrow's type for what a codec gives, before dates, times and decimals are made of it. `text`: JSON's codec,
    which knows one kind of whole numbers and no bytes."""
    match one.kind:
        case "record" | "union":
            names = one.names or tuple(f"member{at}" for at in range(len(one.parts)))
            return pa.struct(
                [(name, raw_type(part, text=text)) for name, part in zip(names, one.parts, strict=True)]
            )
        case "array":
            return pa.list_(raw_type(one.parts[0], text=text))
        case "map":
            return pa.map_(pa.string(), raw_type(one.parts[0], text=text))
        case "wide":
            return _PLAIN[one.logical][1]
    if not text:
        return _PLAIN[one.kind][1]
    if one.decimal and isinstance(one.spark, t.DecimalType):
        return pa.decimal128(one.spark.precision, one.spark.scale)
    wide = {"int": pa.int64(), "float": pa.float64(), "bytes": pa.string(), "fixed": pa.string()}
    return wide.get(one.kind, _PLAIN[one.kind][1])


#: Steps: how a field's bytes are read.
BOOLEAN, INTEGER, FLOAT, DOUBLE, BYTES, FIXED = range(1, 7)


@inlined
def field_of(data: Bytes, at: int, end: int, step: int, fixed: int) -> tuple[int, int, int]:
    """A field that is there: its number, bits or place, its size, and the place after it (-1: it is malformed)."""
    if step == INTEGER:
        found, at = number(data, at, end)
        return found, 0, at
    if step == BYTES:
        found, size, at = part(data, at, end)
        return (found, size, at) if size >= 0 else (0, 0, -1)
    if step == FIXED:
        return (at, fixed, at + fixed) if fixed <= end - at else (0, 0, -1)
    size = 1 if step == BOOLEAN else (4 if step == FLOAT else 8)
    if size > end - at:
        return 0, 0, -1
    found = 0
    for index in range(size):  # little-endian
        byte = data[at + index] & 0xFF
        found |= (byte - 256 if index == 7 and byte > 127 else byte) << (8 * index)
    return found, size, at + size


@inlined
def word_of(data: Bytes, at: int, end: int, sign: int) -> int:
    """The eight bytes before `end`, big-endian; those before `at` are the sign's."""
    found = 0
    for index in range(end - 8, end):
        byte = data[index] & 0xFF if index >= at else sign & 0xFF
        found = byte - 256 if index == end - 8 and byte > 127 else (found << 8) | byte
    return found


@compiled
def scan_avro(data: Bytes, spans: Ints, steps: Ints, found: Ints, sizes: Ints) -> None:
    """Read the values at `spans` (begin and end; a begin of -1 is a null) by the `steps` of their fields.

    `steps` has, for each field, its step, the null branch of its union, and its size if it is fixed.
    `found[field, row]` is the number, the bits of the float, or where the bytes begin; `sizes[field, row]` their
    size, -1 for a null. The span of a value that is not as it should be gets a begin of -2.
    """
    for row in range(len(spans)):
        at, end = spans[row, 0], spans[row, 1]
        for field in range(len(steps)):
            found[field, row] = 0
            sizes[field, row] = -1
            branch = -1
            if at >= 0 and steps[field, 1] >= 0:
                branch, at = number(data, at, end)
                if branch < 0 or branch > 1:
                    at = -1
            if at >= 0 and (branch < 0 or branch != steps[field, 1]):
                found[field, row], sizes[field, row], at = field_of(
                    data, at, end, steps[field, 0], steps[field, 2]
                )
        if spans[row, 0] >= 0 and at != end:
            spans[row, 0] = -2


@compiled
def scan_decimals(data: Bytes, spans: Ints, words: Ints) -> int:
    """The whole numbers at `spans`, big-endian and signed, as two words each, the lower first. Answers the first
    row whose number has more than 16 bytes, -1 if there is none."""
    for row in range(len(spans)):
        at, end = spans[row, 0], spans[row, 1]
        if at < 0 or at == end:
            continue
        if end - at > 16:
            return row
        sign = -(data[at] >> 7 & 1)
        words[row, 0] = word_of(data, at, end, sign)
        words[row, 1] = word_of(data, at, end - 8, sign)
    return -1
