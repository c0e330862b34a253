"""Keys and values by the schemas of their topics: what a function gets for bytes, and bytes for what it gives.

Messages as an Arrow batch, and the rows that a function of batches returns as messages.

Columns: `key`, `value` (bytes; typed values beside it, as the columns of the schema), `topic`, `partition`,
`offset`, `timestamp`, `headers`. What comes back needs `value`, or columns that become a JSON object, or a value
of the schema.

Bytes and values by one schema of the registry: both ways, for every kind that functions know.
"""

import io
import json
import math
import struct
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from weir.functions.api import ESCAPED, Message
from weir.functions.executor_protocol import Headers, Item, SchemaVersion
from weir.model.errors import FunctionError, WireError
from weir.wire.pulsar.translation import SCHEMA_VERSION
from weir.wire.schema_values import KIND as KEY_VALUE
from weir.wire.schema_values import NUMBERS, PartSchema, joined, native_class, numbered_class, split, split_schema

Decode = Callable[[bytes], Any]
Encode = Callable[[Any], bytes]

#: As Pulsar's clients write them.
_NUMBERS = {
    "INT8": ">b",
    "INT16": ">h",
    "INT32": ">i",
    "INT64": ">q",
    "FLOAT": ">f",
    "DOUBLE": ">d",
    "BOOLEAN": ">?",
}
#: The REST tells definitions of these in base64.
_BINARY = ("PROTOBUF_NATIVE", KEY_VALUE)


def plain(value: Any) -> bytes | None:
    """Without a schema: bytes and text as they are, and anything else as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def definition_of(schema: SchemaVersion) -> bytes:
    """As the registry has it."""
    text = schema.definition
    if schema.kind not in _BINARY or text.lstrip().startswith("{"):
        return text.encode()
    return b64decode(text)


def decoder(writer: SchemaVersion, latest: SchemaVersion) -> Decode:
    """Of what was written by the one, read as the other. What there is nothing known of stays bytes."""
    kind = latest.kind
    if kind == "JSON":
        return json.loads
    if kind == "STRING":
        return bytes.decode
    if kind in _NUMBERS:
        layout = struct.Struct(_NUMBERS[kind])
        return lambda data: layout.unpack(data)[0]
    if kind == "AVRO":
        from fastavro import parse_schema, schemaless_reader

        written, read = parse_schema(json.loads(writer.definition)), parse_schema(json.loads(latest.definition))
        return lambda data: schemaless_reader(io.BytesIO(data), written, read)
    message = _message(latest)
    if message is None:
        return lambda data: data
    from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]

    return lambda data: MessageToDict(message.FromString(data), preserving_proto_field_name=True)


def encoder(latest: SchemaVersion) -> Encode:
    kind = latest.kind
    if kind in _NUMBERS:
        layout = struct.Struct(_NUMBERS[kind])
        return layout.pack
    if kind == "AVRO":
        from fastavro import parse_schema, schemaless_writer

        schema = parse_schema(json.loads(latest.definition))

        def write(value: Any) -> bytes:
            into = io.BytesIO()
            schemaless_writer(into, schema, value)
            return into.getvalue()

        return write
    if kind == "JSON":
        return lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    message = _message(latest)
    if message is None:
        return lambda value: plain(value) or b""
    from google.protobuf.json_format import ParseDict

    return lambda value: ParseDict(value, message()).SerializeToString()


def _message(schema: SchemaVersion) -> Any:
    """The class of Protobuf's messages; None if these are none, or their fields have no numbers."""
    if schema.kind == "PROTOBUF_NATIVE":
        return native_class(definition_of(schema))
    if schema.kind == "PROTOBUF" and NUMBERS in schema.properties:
        return numbered_class(schema.properties)
    return None


_ABOUT = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")


def batch_of(items: Sequence[Item], typed: Callable[[Item], Any], key_of: Callable[[Item], bytes | None]) -> Any:
    """A `pyarrow.RecordBatch`. `typed`: the item's value by its topic's schema; None where that is no record."""
    import pyarrow as pa

    headers = [[(name, value) for name, value in item.headers] for item in items]
    columns = {
        "key": pa.array([key_of(item) for item in items], pa.binary()),
        "value": pa.array([item.value for item in items], pa.binary()),
        "topic": pa.array([item.topic for item in items], pa.string()),
        "partition": pa.array([item.partition for item in items], pa.int32()),
        "offset": pa.array([item.offset for item in items], pa.int64()),
        "timestamp": pa.array([item.timestamp for item in items], pa.timestamp("ms", tz="UTC")),
        "headers": pa.array(headers, pa.map_(pa.string(), pa.binary())),
    }
    rows = [typed(item) for item in items]
    if any(isinstance(row, dict) for row in rows):
        names = list(dict.fromkeys(name for row in rows if isinstance(row, dict) for name in row))
        for name in names:
            if name not in _ABOUT:
                columns[name] = pa.array([row.get(name) if isinstance(row, dict) else None for row in rows])
    return pa.record_batch(columns)


def messages_of(returned: Any) -> Iterator[Message]:
    """The messages that a returned RecordBatch, Table, or list of them stands for."""
    if returned is None:
        return
    if isinstance(returned, list | tuple):
        for one in returned:
            yield from messages_of(one)
        return
    if hasattr(returned, "to_pandas") and hasattr(returned, "to_pylist"):
        rows, names = returned.to_pylist(), set(returned.schema.names)
    elif hasattr(returned, "to_dict"):  # a pandas DataFrame
        rows, names = returned.to_dict("records"), set(returned.columns)
    else:
        raise FunctionError(
            f"a function of batches returned {type(returned).__name__}", hint="return a RecordBatch"
        )
    typed = sorted(names - set(_ABOUT))
    for row in rows:
        value = {name: row[name] for name in returned_order(typed, row)} if typed else row.get("value")
        headers = row.get("headers") or []
        found = dict(headers.items() if isinstance(headers, dict) else headers)
        moment = row.get("timestamp")
        yield Message(
            value=value,
            key=row.get("key"),
            headers={name: b"" if value is None else value for name, value in found.items()},
            topic=row.get("topic"),
            timestamp_ms=None if moment is None else _ms(moment),
            partition=row.get("partition", -1) or -1,
            offset=row.get("offset", -1) if row.get("offset") is not None else -1,
        )


def returned_order(typed: Sequence[str], row: dict[str, Any]) -> list[str]:
    """The typed columns in the order in which the function has them."""
    wanted = set(typed)
    return [name for name in row if name in wanted]


def _ms(moment: Any) -> int:
    return round(moment.timestamp() * 1000) if hasattr(moment, "timestamp") else int(moment)


#: Key and value as they are stored, and as the function has them.
Raw = tuple[bytes | None, bytes | None]
_Read = Callable[[bytes | None, bytes | None], tuple[Any, Any]]
_Write = Callable[[Any, Any], Raw]

_AS_THEY_ARE = ("BYTES", "NONE")
_ASK_AGAIN_S = 10.0
_ASKED = 1_000


@dataclass(frozen=True, slots=True)
class _Both:
    """A version of a KEY_VALUE schema."""

    key: SchemaVersion
    value: SchemaVersion
    inline: bool


class Values:
    """The messages of one topic, by the versions of its schema; of one without a schema values are bytes.

    Keys are text, unless a KEY_VALUE schema says what they are.
    """

    def __init__(self, topic: str, versions: Sequence[SchemaVersion] = ()) -> None:
        self.topic = topic
        self._versions = {one.version: one for one in versions}
        self._latest = versions[-1] if versions else None
        self._readers: dict[int, _Read] = {}
        self._write: _Write | None = None
        #: Whether keys lie in the values.
        self.inline = self._latest is not None and self._latest.kind == KEY_VALUE and _both(self._latest).inline

    @property
    def typed(self) -> bool:
        return self._latest is not None

    def decode(self, key: bytes | None, data: bytes | None, headers: Headers) -> tuple[Any, Any]:
        """Key and value; FunctionError for what does not fit."""
        if self._latest is None:
            return _text(key), data
        version = self._latest.version
        for name, value in headers:
            if name == SCHEMA_VERSION and value is not None and value.isdigit():
                version = int(value)
        try:
            read = self._readers.get(version)
            if read is None:
                read = self._readers[version] = _reader(self._versions.get(version, self._latest), self._latest)
            return read(key, data)
        except Exception as bad:
            raise FunctionError(
                f"the value does not fit the {self._latest.kind} schema of {self.topic}: {bad}"
            ) from bad

    def encode(self, key: Any, value: Any) -> Raw:
        """FunctionError for what does not fit."""
        if self._latest is None:
            return _key(key), plain(value)
        try:
            if self._write is None:
                self._write = _writer(self._latest)
            return self._write(key, value)
        except Exception as bad:
            raise FunctionError(
                f"what is returned does not fit the {self._latest.kind} schema of {self.topic}: {bad}"
            ) from bad

    def own_key(self, key: bytes | None, data: bytes | None) -> bytes:
        """By which there is state, and work is dealt: the message's, or that which lies in its value."""
        if self.inline and data is not None:
            with suppress(WireError):  # what is neither fails when it is decoded
                key = split(data)[0]
        return key or b""

    def unknown(self, headers: Headers) -> int | None:
        """The version that a message was written by, if it says one that is not known, and that matters."""
        if self._latest is not None and self._latest.kind not in ("AVRO", KEY_VALUE):
            return None
        for name, value in headers:
            if (
                name == SCHEMA_VERSION
                and value is not None
                and value.isdigit()
                and int(value) not in self._versions
            ):
                return int(value)
        return None


class LaterVersions:
    """Versions that were registered since the schemas were asked for. Headers are the producer's and may name what
    there is not: that is not asked for again with every message."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._asked_s: dict[tuple[str, int], float] = {}

    def wanted(self, items: Iterable[Item], values: Mapping[str, Values]) -> bool:
        """Whether the registry has to be asked before these are read."""
        found = {
            (item.topic, version)
            for item in items
            if (mine := values.get(item.topic)) is not None and (version := mine.unknown(item.headers)) is not None
        }
        now_s = self._now_s()
        new = [one for one in found if now_s - self._asked_s.get(one, -math.inf) > _ASK_AGAIN_S]
        if len(self._asked_s) > _ASKED:
            self._asked_s.clear()
        self._asked_s |= dict.fromkeys(new, now_s)
        return bool(new)


def all_values(schemas: Mapping[str, Sequence[SchemaVersion]]) -> dict[str, Values]:
    return {topic: Values(topic, versions) for topic, versions in schemas.items()}


def _both(schema: SchemaVersion) -> _Both:
    found = split_schema(definition_of(schema), schema.properties)
    return _Both(_version(schema, found.key), _version(schema, found.value), found.inline)


def _version(schema: SchemaVersion, part: PartSchema) -> SchemaVersion:
    """As the REST tells it of a topic that has this schema alone."""
    native = part.kind == "PROTOBUF_NATIVE"
    text = b64encode(part.definition).decode() if native else part.definition.decode()
    return SchemaVersion(schema.version, part.kind, text, dict(part.properties))


def _reader(writer: SchemaVersion, latest: SchemaVersion) -> _Read:
    if latest.kind != KEY_VALUE:
        of_value = decoder(writer, latest)
        return lambda key, data: (_text(key), None if data is None else of_value(data))
    new = _both(latest)
    old = _both(writer) if writer.kind == KEY_VALUE else new
    of_key, of_value = decoder(old.key, new.key), decoder(old.value, new.value)

    def read(key: bytes | None, data: bytes | None) -> tuple[Any, Any]:
        if old.inline and data is not None:
            key, data = split(data)
        return None if key is None else of_key(key), None if data is None else of_value(data)

    return read


def _writer(latest: SchemaVersion) -> _Write:
    if latest.kind != KEY_VALUE:
        of_value = encoder(latest)
        return lambda key, value: (_key(key), _raw(value, of_value))
    both = _both(latest)
    of_key, of_value = encoder(both.key), encoder(both.value)

    def write(key: Any, value: Any) -> Raw:
        raw_key = _raw(key, of_key)
        if both.inline and isinstance(value, bytes) and both.value.kind not in _AS_THEY_ARE:
            return raw_key, value  # the whole message, as it is
        data = _raw(value, of_value)
        # A key that lies in the value is the message's too, so that partitions keep the order of a key.
        return raw_key, joined(raw_key, data) if both.inline else data

    return write


def _raw(value: Any, encode: Encode) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else encode(value)


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode(errors=ESCAPED)


def _key(key: Any) -> bytes | None:
    return key.encode(errors=ESCAPED) if isinstance(key, str) else plain(key)
