"""Small translations between protobuf and values."""

from collections.abc import Iterable

from weir.broker.api import SchemaData
from weir.gateway.pulsar.unacked import EntryPosition
from weir.wire.pulsar.ids import signed
from weir.wire.pulsar.proto import api

#: Pulsar's words for the types whose name in the protocol is not the same in capitals.
_WORDS = {
    "KeyValue": "KEY_VALUE",
    "LocalDate": "LOCAL_DATE",
    "LocalTime": "LOCAL_TIME",
    "LocalDateTime": "LOCAL_DATE_TIME",
    "ProtobufNative": "PROTOBUF_NATIVE",
    "AutoConsume": "AUTO_CONSUME",
    "Bool": "BOOLEAN",
    "None": "BYTES",
}
_TYPES = {name: _WORDS.get(name, name.upper()) for name, _ in api.Schema.Type.items()}
_NAMES = {word: name for name, word in _TYPES.items()}
#: Types that say nothing about a message.
_NO_SCHEMA = ("None", "AutoConsume")


def place_of(at: api.MessageIdData) -> EntryPosition:
    """Ledger and entry of a message id."""
    return signed(at.ledgerId), signed(at.entryId)


def pairs(metadata: Iterable[api.KeyValue]) -> dict[str, str]:
    return {pair.key: pair.value for pair in metadata}


def schema_from_wire(schema: api.Schema) -> SchemaData | None:
    """None for bytes without a schema, and for a consumer that takes whatever there is."""
    name = api.Schema.Type.Name(schema.type)
    if name in _NO_SCHEMA:
        return None
    # The Python client writes the definition of a type that needs none as JSON's null.
    data = b"" if schema.schema_data == b"null" else schema.schema_data
    return SchemaData(_TYPES[name], data, schema.name, pairs(schema.properties))


def schema_to_wire(schema: SchemaData) -> api.Schema:
    return api.Schema(
        name=schema.name,
        schema_data=schema.data,
        type=api.Schema.Type.Value(_NAMES[schema.type]),
        properties=[api.KeyValue(key=key, value=value) for key, value in schema.properties.items()],
    )
