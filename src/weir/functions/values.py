"""Values by the schemas of their topics: what a function gets for bytes, and the bytes for what it gives."""

import io
import json
import struct
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weir.functions.protocol import Headers, SchemaVersion
from weir.model.errors import FunctionError
from weir.wire.pulsar.translation import SCHEMA_VERSION

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


def plain(value: Any) -> bytes | None:
    """Without a schema: bytes and text as they are, and anything else as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class Values:
    """The values of one topic, by the versions of its schema; of one without a schema they are bytes."""

    def __init__(self, topic: str, versions: Sequence[SchemaVersion] = ()) -> None:
        self.topic = topic
        self._versions = {one.version: one for one in versions}
        self._latest = versions[-1] if versions else None
        self._decoders: dict[int, Decode] = {}
        self._encode: Encode | None = None

    @property
    def typed(self) -> bool:
        return self._latest is not None

    def decode(self, data: bytes | None, headers: Headers) -> Any:
        """FunctionError for what does not fit."""
        if data is None or self._latest is None:
            return data
        version = self._latest.version
        for name, value in headers:
            if name == SCHEMA_VERSION and value is not None and value.isdigit():
                version = int(value)
        decode = self._decoders.get(version)
        if decode is None:
            writer = self._versions.get(version, self._latest)
            decode = self._decoders[version] = _decoder(writer, self._latest)
        try:
            return decode(data)
        except Exception as bad:
            raise FunctionError(
                f"the value does not fit the {self._latest.kind} schema of {self.topic}: {bad}"
            ) from bad

    def encode(self, value: Any) -> bytes | None:
        """FunctionError for what does not fit."""
        if value is None or isinstance(value, bytes) or self._latest is None:
            return plain(value)
        if self._encode is None:
            self._encode = _encoder(self._latest)
        try:
            return self._encode(value)
        except Exception as bad:
            raise FunctionError(
                f"what is returned does not fit the {self._latest.kind} schema of {self.topic}: {bad}"
            ) from bad

    def knows(self, headers: Headers) -> bool:
        """Whether the version that a message was written by is known, if it says one and it matters."""
        if self._latest is None or self._latest.kind != "AVRO":
            return True
        return all(
            name != SCHEMA_VERSION or value is None or not value.isdigit() or int(value) in self._versions
            for name, value in headers
        )


def all_values(schemas: Mapping[str, Sequence[SchemaVersion]]) -> dict[str, Values]:
    return {topic: Values(topic, versions) for topic, versions in schemas.items()}


def _decoder(writer: SchemaVersion, latest: SchemaVersion) -> Decode:
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
    if kind == "PROTOBUF_NATIVE":
        from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]

        message = _message_class(latest.definition)
        return lambda data: MessageToDict(message.FromString(data), preserving_proto_field_name=True)
    return lambda data: data


def _encoder(latest: SchemaVersion) -> Encode:
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
    if kind == "PROTOBUF_NATIVE":
        from google.protobuf.json_format import ParseDict

        message = _message_class(latest.definition)
        return lambda value: ParseDict(value, message()).SerializeToString()
    if kind == "JSON":
        return lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return lambda value: plain(value) or b""


def _message_class(definition: str) -> Any:
    """The message that the definition of a PROTOBUF_NATIVE schema describes; the REST tells it in base64."""
    from google.protobuf import (  # type: ignore[import-untyped]
        descriptor_pb2,
        descriptor_pool,
        message_factory,
    )

    text = definition if definition.lstrip().startswith("{") else b64decode(definition).decode()
    given = json.loads(text)
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(b64decode(given["fileDescriptorSet"])).file:
        pool.Add(file)
    found = pool.FindMessageTypeByName(given["rootMessageTypeName"].lstrip("."))
    return message_factory.GetMessageClass(found)
