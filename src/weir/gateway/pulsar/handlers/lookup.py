"""Handlers that find topics and their metadata: LOOKUP, PARTITIONED_METADATA, GET_SCHEMA, GET_OR_CREATE_SCHEMA,
GET_TOPICS_OF_NAMESPACE, WATCH_TOPIC_LIST and WATCH_TOPIC_LIST_CLOSE."""

from weir.gateway.pulsar.command_table import later
from weir.gateway.pulsar.errors import NO_TRANSACTIONS, schema_from_wire, schema_to_wire
from weir.gateway.pulsar.handlers.connection import COORDINATOR
from weir.gateway.pulsar.links import Opening
from weir.gateway.pulsar.lookup import Watch
from weir.gateway.pulsar.session import Session
from weir.model.errors import NotAllowedError, TopicNotFoundError
from weir.model.topics import Domain, NamespaceName, TopicName
from weir.wire.pulsar import pulsar_api_pb2 as api

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
    """Return the owner of a topic. If no broker owns it, redirect the client to the broker that should, where it
    repeats the lookup: meanwhile another broker may have acquired the topic."""
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


#: Bytes have no schema and an empty version. Go producers put this version on messages, and Go consumers then
#: request a schema of that version. Go clients accept a response without the field; Java clients do not.
_STAMPS_EMPTY = "Pulsar-Go-"


@later(api.CommandGetSchema)
async def get_schema(session: Session, command: api.CommandGetSchema) -> api.CommandGetSchemaResponse:
    name = TopicName.parse(command.topic)
    found = await session.services.schemas.get(name, command.schema_version or None, role=session.role)
    if found is None:
        raise TopicNotFoundError(f"{name} has no schema of this version")
    schema, version = found
    return api.CommandGetSchemaResponse(
        request_id=command.request_id, schema=schema_to_wire(schema), schema_version=version
    )


@later(api.CommandGetOrCreateSchema)
async def get_or_create_schema(
    session: Session, command: api.CommandGetOrCreateSchema
) -> api.CommandGetOrCreateSchemaResponse:
    schema = schema_from_wire(command.schema)  # None for bytes: a Java producer may mix them with other schemas
    name = TopicName.parse(command.topic)
    version = await session.services.schemas.add(name, schema, role=session.role)
    answer = api.CommandGetOrCreateSchemaResponse(request_id=command.request_id)
    if version or not session.client_version.startswith(_STAMPS_EMPTY):
        answer.schema_version = version
    return answer


_Get = api.CommandGetTopicsOfNamespace
_DOMAINS = {_Get.PERSISTENT: Domain.PERSISTENT, _Get.NON_PERSISTENT: Domain.NON_PERSISTENT}


@later(api.CommandGetTopicsOfNamespace)
async def topics_of_namespace(
    session: Session, command: api.CommandGetTopicsOfNamespace
) -> api.CommandGetTopicsOfNamespaceResponse:
    """List the topics of a namespace, filtered by the client's pattern if it has one."""
    pattern = command.topics_pattern or None
    async with session.listing:
        found = await session.broker.topics(command.namespace, role=session.role, pattern=pattern)
    wanted = _DOMAINS.get(command.mode)
    names = [str(name) for name in found if wanted is None or name.domain is wanted]
    return api.CommandGetTopicsOfNamespaceResponse(
        request_id=command.request_id, topics=names, filtered=pattern is not None, changed=True
    )


@later(api.CommandWatchTopicList)
async def watch_topic_list(
    session: Session, command: api.CommandWatchTopicList
) -> api.CommandWatchTopicListSuccess | None:
    opening = session.watches.begin(command.watcher_id)
    try:
        async with session.listing:
            topics = await session.services.lists.watch_topics(
                NamespaceName.parse(command.namespace),
                role=session.role,
                pattern=command.topics_pattern,
                domain=Domain.PERSISTENT,  # as in Pulsar: clients poll for non-persistent topics
                known_hash=command.topics_hash,
            )
    except BaseException:
        session.watches.end(command.watcher_id, opening)
        raise
    watch = Watch(session, command.watcher_id, topics)
    session.watches.put(command.watcher_id, opening, watch)
    session.answer(
        api.CommandWatchTopicListSuccess(
            request_id=command.request_id,
            watcher_id=command.watcher_id,
            topic=map(str, topics.names) if topics.is_news else (),
            topics_hash=topics.hash,
        )
    )
    watch.start()
    return None


@later(api.CommandWatchTopicListClose)
async def close_watch(session: Session, command: api.CommandWatchTopicListClose) -> api.CommandSuccess:
    watch = session.watches.get(command.watcher_id)
    if watch is not None and not isinstance(watch, Opening):
        watch.stop()
        session.watches.end(command.watcher_id, watch)
    return api.CommandSuccess(request_id=command.request_id)
