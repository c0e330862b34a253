"""PARTITIONED_METADATA and LOOKUP: how many partitions a topic has, and which broker serves it."""

from weir.gateway.pulsar.errors import NO_TRANSACTIONS
from weir.gateway.pulsar.handlers.transactions import COORDINATOR
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
    if name.base == COORDINATOR:
        raise NotAllowedError(NO_TRANSACTIONS)
    count = await session.broker.partitions(name, role=session.role, create=command.metadata_auto_creation_enabled)
    return api.CommandPartitionedTopicMetadataResponse(
        request_id=command.request_id,
        partitions=count,
        response=api.CommandPartitionedTopicMetadataResponse.Success,
    )


@later(api.CommandLookupTopic)
async def lookup(session: Session, command: api.CommandLookupTopic) -> api.CommandLookupTopicResponse:
    """Who has the topic is named at once. Where nobody has it, the client is sent to who should, to ask again
    there: between the two somebody else may have taken it."""
    name = TopicName.parse(command.topic)
    if name.base == COORDINATOR:
        raise NotAllowedError(NO_TRANSACTIONS)
    owner = await session.broker.owner(name, role=session.role)
    urls = session.urls_of(owner, command.advertised_listener_name)
    return api.CommandLookupTopicResponse(
        request_id=command.request_id,
        response=_Found.Connect if owner.here or owner.taken else _Found.Redirect,
        authoritative=True,
        brokerServiceUrl=urls.plain,
        brokerServiceUrlTls=urls.tls,
        proxy_through_service_url=False,
    )
