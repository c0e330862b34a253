"""Rows and messages: values typed by the topic's schema in the registry, both ways.

A row is a mapping of plain values: numbers, texts, bytes, Decimal, date, time and datetime. JSON values follow the
same schema as Avro's do, as everywhere in Weir: times are numbers there, bytes are base64.

Types of Arrow and of Avro, each as the other has it.
"""

import io
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any

import fastavro
import pyarrow as pa

from weir.client.admin import Access, ask_v2, join
from weir.client.schemas import TopicSchema, schemas_by
from weir.connect.task import Message
from weir.model.errors import ConnectorError, NotAllowedError, SchemaNotFoundError, WeirError
from weir.model.topics import TopicName
from weir.wire.pulsar.translation import SCHEMA_VERSION

Row = Mapping[str, Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = date(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
#: As Protobuf's JSON writes them, and Spark reads them.
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_VERSION_HEADER = SCHEMA_VERSION.encode()
_MOST_ASKED = 1_000


def latest_schema(access: Access, topic: TopicName) -> Sequence[TopicSchema]:
    """All versions, the latest last; empty if the topic has none."""
    try:
        return schemas_by(access, topic)
    except SchemaNotFoundError:
        return ()


def register(access: Access, topic: TopicName, kind: str, definition: Mapping[str, Any]) -> None:
    """ConnectorError if it does not go with the schema that the topic has."""
    body = {"type": kind.upper(), "schema": json.dumps(definition), "properties": {}}
    path = join("schemas", topic.namespace.tenant, topic.namespace.name, topic.local, "schema")
    try:
        ask_v2(access, "POST", path, body)
    except NotAllowedError as refused:
        raise ConnectorError(
            f"the columns do not go with the schema that {topic} has: {refused.what}",
            hint="write another topic, or delete the schema: weir schemas delete",
        ) from None


# --- rows to values -----------------------------------------------------------------------------------------


class Encoder:
    """Rows as values of a topic: by the schema that it has, else as plain JSON."""

    def __init__(self, schema: TopicSchema | None, topic: TopicName) -> None:
        self._topic = topic
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        self._encode: Callable[[Row], bytes] = plain_json
        #: Whether no schema says what values are.
        self.plain = schema is None
        if schema is None:
            return
        if schema.kind == "JSON":
            self._encode = _json_encoder(json.loads(schema.definition))
        elif schema.kind == "AVRO":
            self._encode = _avro_encoder(json.loads(schema.definition))
            self.headers = ((_VERSION_HEADER, str(schema.version).encode()),)
        else:
            raise ConnectorError(
                f"the values of {topic} are {schema.kind}, and rows become JSON or AVRO",
                hint="write another topic",
            )

    def encode(self, row: Row) -> bytes:
        try:
            return self._encode(row)
        except (ValueError, TypeError, KeyError, OverflowError, ArithmeticError) as bad:
            raise ConnectorError(f"a row is not as the schema of {self._topic} says: {bad}") from None


def plain_json(row: Any) -> bytes:
    """JSON has no NaN and no infinity: they become texts."""
    try:
        text = json.dumps(row, default=json_value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(row), default=json_value, ensure_ascii=False)
    return text.encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else _NOT_FINITE[str(value)]
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def json_value(value: Any) -> Any:
    """What JSON has for it."""
    if isinstance(value, bytes | memoryview):
        return b64encode(bytes(value)).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value)


def _fields(definition: Mapping[str, Any]) -> list[tuple[str, Any, bool]]:
    """Of a record: names, types without null, and whether they may be left out."""
    found = []
    for field in definition.get("fields", ()):
        kind = field["type"]
        optional = "default" in field or (isinstance(kind, list) and "null" in kind)
        found.append((field["name"], _alone(kind), optional))
    return found


def _alone(kind: Any) -> Any:
    if isinstance(kind, list):
        rest = [one for one in kind if one != "null"]
        return rest[0] if len(rest) == 1 else rest
    return kind


def _shape(kind: Any) -> str:
    """The logical type, or the plain one."""
    if isinstance(kind, dict):
        return str(kind.get("logicalType") or kind.get("type"))
    return str(kind) if isinstance(kind, str) else "union"


def _json_encoder(definition: Mapping[str, Any]) -> Callable[[Row], bytes]:
    fields = _fields(definition)

    def encode(row: Row) -> bytes:
        found = {}
        for name, kind, optional in fields:
            value = row.get(name)
            if value is None and not optional:
                raise ValueError(f"{name} is missing")
            if name in row:
                found[name] = None if value is None else to_json(value, kind)
        return plain_json(found)

    return encode


def to_json(value: Any, kind: Any) -> Any:  # noqa: PLR0911 - a table of types
    """A value as JSON writes one of this type."""
    match _shape(kind):
        case "timestamp-millis":
            return _micros(value) // 1000
        case "timestamp-micros":
            return _micros(value)
        case "date":
            return value if isinstance(value, int) else (_as_date(value) - _DAY).days
        case "int" | "long":
            return int(value)
        case "float" | "double":
            return float(value)
        case "boolean":
            return _flag(value)
        case "bytes" | "fixed" | "decimal":
            return b64encode(bytes(value)).decode() if isinstance(value, bytes | memoryview) else str(value)
        case "string":
            return value if isinstance(value, str) else _as_text(value)
        case _:
            return json.loads(plain_json(value))


def _avro_encoder(definition: Mapping[str, Any]) -> Callable[[Row], bytes]:
    schema = fastavro.parse_schema(dict(definition))
    fields = _fields(definition)

    def encode(row: Row) -> bytes:
        out = io.BytesIO()
        found = {name: _to_avro(row[name], kind) for name, kind, _ in fields if row.get(name) is not None}
        found |= {name: None for name, _, optional in fields if optional and name in row and row[name] is None}
        fastavro.schemaless_writer(out, schema, found, strict_allow_default=True)
        return out.getvalue()

    return encode


def _to_avro(value: Any, kind: Any) -> Any:  # noqa: PLR0911 - a table of types
    match _shape(kind):
        case "timestamp-millis" | "timestamp-micros" if isinstance(value, int):
            return _micros(value) // (1000 if _shape(kind) == "timestamp-millis" else 1)
        case "timestamp-millis" | "timestamp-micros":
            return _EPOCH + timedelta(microseconds=_micros(value))
        case "date":
            return value if isinstance(value, int) else _as_date(value)
        case "int" | "long":
            return int(value)
        case "float" | "double":
            return float(value)
        case "boolean":
            return _flag(value)
        case "string":
            return value if isinstance(value, str) else _as_text(value)
        case "bytes":
            return value if isinstance(value, bytes) else bytes(str(value), "utf-8")
        case _:
            return value


def _micros(value: Any) -> int:
    """Since 1970. Without a zone: UTC. A number is one that Python's years end before."""
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return int((value - _EPOCH) // _MICROSECOND)


def _as_date(value: Any) -> date:
    if isinstance(value, str):
        return date.fromisoformat(value[:10])
    return value.date() if isinstance(value, datetime) else value


def _flag(value: Any) -> bool:
    if isinstance(value, str):
        if value.lower() in ("true", "t", "1", "yes"):
            return True
        if value.lower() in ("false", "f", "0", "no"):
            return False
        raise ValueError(f"{value!r} is neither true nor false")
    return bool(value)


def _as_text(value: Any) -> str:
    if isinstance(value, dict | list):
        return plain_json(value).decode()
    found = json_value(value)
    return found if isinstance(found, str) else str(found)


def record_of(name: str, columns: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A schema of columns that may be null."""
    plain = "".join(char if char.isascii() and char.isalnum() else "_" for char in name)
    return {
        "type": "record",
        "name": plain if plain[:1].isalpha() else f"r_{plain}",
        "fields": [{"name": column, "type": ["null", kind], "default": None} for column, kind in columns],
    }


# --- values to rows -----------------------------------------------------------------------------------------


class Decoder:
    """Values of a topic as rows. ConnectorError for one that is not as the schema says. A schema may get a version
    while values come: one that names a version, or has a field, that is not known has them asked for `again`."""

    def __init__(
        self, versions: Sequence[TopicSchema], topic: str, again: Callable[[], Sequence[TopicSchema]] | None = None
    ) -> None:
        self._topic = topic
        self._again = again
        #: Versions and fields that were looked for.
        self._asked: set[int | str] = set()
        self._learn(versions)

    def _learn(self, versions: Sequence[TopicSchema]) -> None:
        topic = self._topic
        self.schema = versions[-1] if versions else None
        self._versions = {one.version: one for one in versions}
        self._avro: dict[int, Any] = {}
        self._types: dict[str, Any] = {}
        self._proto: Any = None
        kind = None if self.schema is None else self.schema.kind
        if self.schema is not None and kind in ("JSON", "AVRO"):
            self._types = {name: one for name, one, _ in _fields(json.loads(self.schema.definition))}
        if self.schema is not None and kind in ("PROTOBUF", "PROTOBUF_NATIVE"):
            self._proto = _proto_class(self.schema, topic)

    @property
    def columns(self) -> Sequence[tuple[str, Any]]:
        """Names and types of Avro's, where the schema has them."""
        return list(self._types.items())

    def row(self, message: Message) -> dict[str, Any]:
        """A value that is no object is a row with the one column `value`."""
        found = self.value(message)
        return found if isinstance(found, dict) else {"value": found}

    def value(self, message: Message) -> Any:
        """Without a schema: JSON if it is that, else text, else bytes."""
        value = bytes(message.value or b"")
        said = next((text for name, text in message.headers if name == _VERSION_HEADER and text), None)
        try:
            version = None if said is None else int(bytes(said))
            if version is not None and version not in self._versions:
                self._look_for(version)
            match None if self.schema is None else self.schema.kind:
                case "JSON":
                    found = json.loads(value)
                    return self._typed(found) if isinstance(found, dict) else found
                case "AVRO":
                    return self._read_avro(value, version)
                case "PROTOBUF" | "PROTOBUF_NATIVE":
                    from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]

                    return MessageToDict(self._proto.FromString(value), preserving_proto_field_name=True)
                case "STRING":
                    return value.decode()
                case None:
                    return _guess(value)
                case _:
                    return value
        except Exception as bad:
            if isinstance(bad, WeirError) and not isinstance(bad, ConnectorError):
                raise  # the registry was asked, and did not answer: nothing is wrong with the value
            raise ConnectorError(f"a value of {self._topic} is not as its schema says: {bad}") from None

    def _look_for(self, what: int | str) -> None:
        """Each is looked for once, and not for ever: fields without a schema may have any names."""
        if self._again is not None and what not in self._asked and len(self._asked) < _MOST_ASKED:
            self._learn(self._again())
            self._asked.add(what)

    def _typed(self, found: Mapping[str, Any]) -> dict[str, Any]:
        for name in found:
            if name not in self._types:
                self._look_for(name)
        types = self._types
        return {
            name: value if value is None or name not in types else from_json(value, types[name])
            for name, value in found.items()
        }

    def _read_avro(self, value: bytes, version: int | None) -> Any:
        latest = self.schema
        assert latest is not None
        by = latest if version is None else self._versions.get(version, latest)
        for one in (by, latest):
            if one.version not in self._avro:
                self._avro[one.version] = fastavro.parse_schema(json.loads(one.definition))
        return fastavro.schemaless_reader(
            io.BytesIO(value), self._avro[by.version], self._avro[latest.version] if by is not latest else None
        )


def from_json(value: Any, kind: Any) -> Any:
    """A value of JSON as one of its type."""
    match _shape(kind):
        case "timestamp-millis" | "timestamp-micros" | "date":
            with suppress(OverflowError):
                return _moment(value, _shape(kind))
            # Python has no such year: it stays a number, of days or microseconds.
            return value * 1000 if _shape(kind) == "timestamp-millis" else value
        case "float" | "double":
            return float(value) if isinstance(value, str) else value
        case "bytes" | "fixed":
            return b64decode(value)
        case "decimal":
            return Decimal(str(value))
        case _:
            return value


def _moment(value: Any, shape: str) -> Any:
    if shape == "date":
        return _DAY + timedelta(days=value)
    return _EPOCH + (
        timedelta(milliseconds=value) if shape == "timestamp-millis" else timedelta(microseconds=value)
    )


def _guess(value: bytes) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        pass
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _proto_class(schema: TopicSchema, topic: str) -> Any:
    try:
        from google.protobuf import message_factory  # type: ignore[import-untyped]

        from weir.spark.values.protobuf import descriptor_of, native_definition, numbered_definition
    except ImportError as missing:
        raise ConnectorError(f"Protobuf values of {topic} need the extra spark: {missing}") from None
    if schema.kind == "PROTOBUF":
        definition = numbered_definition(schema.properties, topic)
    else:
        definition = native_definition(schema.definition)
    return message_factory.GetMessageClass(descriptor_of(definition, topic))


def key_of(row: Row, columns: Sequence[str]) -> bytes | None:
    """The key of a message: the one column as text, or several as a JSON object."""
    if not columns:
        return None
    if len(columns) == 1:
        value = row.get(columns[0])
        return None if value is None else _as_text(value).encode()
    return plain_json({name: row.get(name) for name in columns})


def key_row(key: bytes | None, columns: Sequence[str]) -> dict[str, Any]:
    """The other way round; ConnectorError if the key is no such."""
    if key is None:
        raise ConnectorError("a message has no key, by which a row could be found")
    text = bytes(key).decode(errors="replace")
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    if isinstance(found, dict) and all(name in found for name in columns):
        return {name: found[name] for name in columns}
    if len(columns) == 1:
        return {columns[0]: text}
    raise ConnectorError(f"the key {text[:80]!r} does not have {', '.join(columns)}")


_TO_ARROW = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
}


def columns_of(schema: Any) -> list[tuple[str, Any]]:
    """A Parquet file's columns; what Avro has no plain type for becomes text."""
    return [(field.name, _avro(field.type)) for field in schema]


def _avro(kind: Any) -> Any:  # noqa: PLR0911 - a table of types
    types = pa.types
    if types.is_boolean(kind):
        return "boolean"
    if types.is_integer(kind):
        return "int" if kind.bit_width < 32 or (kind.bit_width == 32 and types.is_signed_integer(kind)) else "long"
    if types.is_floating(kind):
        return "double" if kind.bit_width == 64 else "float"
    if types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros"}
    if types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "bytes"
    return "string"


def table_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[tuple[str, Any]]) -> Any:
    """Rows as a table: columns of the schema have its types, the others those of their values."""
    fields = []
    names = {name: None for row in rows for name in row}
    typed = {name: _TO_ARROW.get(_arrow_shape(kind)) for name, kind in columns}
    for name in dict.fromkeys([*typed, *names]):
        values = [row.get(name) for row in rows]
        kind = typed.get(name)
        array = pa.array(values, kind) if kind is not None else pa.array(values)
        fields.append((name, array))
    return pa.table([array for _, array in fields], names=[name for name, _ in fields])


def odd_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[tuple[str, Any]]) -> dict[int, str]:
    """Rows that make no table with those before them, by their number, and why. Of values that are alike one is
    tried: a look at each row is enough, however many of them are odd."""
    kinds = {name: _TO_ARROW.get(_arrow_shape(kind)) for name, kind in columns}
    found: dict[int, str] = {}
    fine: dict[str, list[Any]] = {}
    known: dict[tuple[str, Any], str] = {}
    for at, row in enumerate(rows):
        for name, value in row.items():
            if value is None:
                continue
            like = (name, _likeness(value))
            if like not in known:
                tried = [*fine.get(name, ()), value]
                known[like] = _refusal(tried, kinds.get(name))
                if not known[like]:
                    fine[name] = tried
            if known[like]:
                found[at] = known[like]
                break
    return found


def _refusal(values: list[Any], kind: Any) -> str:
    """Why they make no column; empty if they do."""
    try:
        pa.array(values, kind)
    except (pa.ArrowException, OverflowError) as bad:
        return str(bad)
    return ""


def _likeness(value: Any) -> Any:
    """What is the same of values that go with the same columns."""
    match value:
        case dict():
            return tuple((name, _likeness(one)) for name, one in value.items())
        case list():
            return "list", tuple(dict.fromkeys(map(_likeness, value)))
        case int() if not isinstance(value, bool):
            return "int", (value.bit_length() > 31) + (value.bit_length() > 63)
    return type(value).__name__


def _arrow_shape(kind: Any) -> str:
    if isinstance(kind, dict):
        return str(kind.get("logicalType") or kind.get("type"))
    return kind if isinstance(kind, str) else ""
