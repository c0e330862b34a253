"""PARTITIONED_METADATA and LOOKUP: how many partitions a topic has, and which broker serves it."""

from weir.gateway.pulsar.registry import later
from weir.gateway.pulsar.session import Session
from weir.model.errors import NotAllowedError
from weir.model.topics import TopicName
from weir.wire.pulsar.proto import api

_Found = api.CommandLookupTopicResponse


@later(api.CommandPartitionedTopicMetadata)
async def partitions(
    session: Session, command: api.CommandPartitionedTopicMetadata
) -> api.CommandPartitionedTopicMetadataResponse:
    name = TopicName.parse(command.topic)
    count = await session.broker.partitions(name, role=session.role, create=command.metadata_auto_creation_enabled)
    return api.CommandPartitionedTopicMetadataResponse(
        request_id=command.request_id,
        partitions=count,
        response=api.CommandPartitionedTopicMetadataResponse.Success,
    )


@later(api.CommandLookupTopic)
async def lookup(session: Session, command: api.CommandLookupTopic) -> api.CommandLookupTopicResponse:
    if command.advertised_listener_name:
        raise NotAllowedError(
            f"this broker has no listener named {command.advertised_listener_name[:80]!r}",
            hint="leave the listener's name out: who came to a listener is told its address",
        )
    owner = await session.broker.owner(TopicName.parse(command.topic), role=session.role)
    # A client that came to this listener reaches it again; of another broker only it knows its addresses.
    url = session.service_url if owner.here else owner.url("pulsar", "pulsar_tls")
    over_tls = url.startswith("pulsar+ssl:")
    return api.CommandLookupTopicResponse(
        request_id=command.request_id,
        response=_Found.Connect if owner.here else _Found.Redirect,
        authoritative=owner.here,
        brokerServiceUrl="" if over_tls else url,
        brokerServiceUrlTls=url if over_tls else "",
    )
