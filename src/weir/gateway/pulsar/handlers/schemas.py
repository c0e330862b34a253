"""GET_SCHEMA and GET_OR_CREATE_SCHEMA."""

from weir.gateway.pulsar.registry import later
from weir.gateway.pulsar.session import Session
from weir.gateway.pulsar.values import schema_from_wire, schema_to_wire
from weir.model.errors import TopicNotFoundError
from weir.model.topics import TopicName
from weir.wire.pulsar.proto import api

#: The version of bytes, which have no schema, is empty. Clients for Go put it on messages; their consumers then
#: look for a schema of that version; they understand an answer without the field. Clients for Java do not.
_STAMPS_EMPTY = "Pulsar-Go-"


@later(api.CommandGetSchema)
async def get_schema(session: Session, command: api.CommandGetSchema) -> api.CommandGetSchemaResponse:
    name = TopicName.parse(command.topic)
    found = await session.services.schemas.get(name, command.schema_version or None, role=session.role)
    if found is None:
        raise TopicNotFoundError(f"{name} has no such schema")
    schema, version = found
    return api.CommandGetSchemaResponse(
        request_id=command.request_id, schema=schema_to_wire(schema), schema_version=version
    )


@later(api.CommandGetOrCreateSchema)
async def get_or_create_schema(
    session: Session, command: api.CommandGetOrCreateSchema
) -> api.CommandGetOrCreateSchemaResponse:
    schema = schema_from_wire(command.schema)  # None for bytes, which a Java producer may send beside others
    name = TopicName.parse(command.topic)
    version = await session.services.schemas.add(name, schema, role=session.role)
    answer = api.CommandGetOrCreateSchemaResponse(request_id=command.request_id)
    if version or not session.client_version.startswith(_STAMPS_EMPTY):
        answer.schema_version = version
    return answer
