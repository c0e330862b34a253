"""GET_TOPICS_OF_NAMESPACE, WATCH_TOPIC_LIST and WATCH_TOPIC_LIST_CLOSE.

A client's watch of a namespace's topics: the list at first, then what changes.

PARTITIONED_METADATA and LOOKUP: how many partitions a topic has, and which broker serves it.

GET_SCHEMA and GET_OR_CREATE_SCHEMA.

Where a client that came by one listener finds another broker.
"""

import asyncio
import logging
from typing import NamedTuple

from weir.broker.api.broker import Owner, TopicListWatch
from weir.gateway.pulsar.command_table import later
from weir.gateway.pulsar.connect import COORDINATOR
from weir.gateway.pulsar.errors import NO_TRANSACTIONS, schema_from_wire, schema_to_wire
from weir.gateway.pulsar.links import Opening
from weir.gateway.pulsar.session import Session
from weir.model.errors import ConnectionLostError, NotAllowedError, NotOwnerError, TopicNotFoundError, WeirError
from weir.model.topics import Domain, NamespaceName, TopicName
from weir.runtime.tasks import OPEN_UNITS
from weir.wire.pulsar import pulsar_api_pb2 as api

_TLS = "pulsar+ssl:"
_PLAIN = "pulsar:"


class BrokerUrls(NamedTuple):
    """A broker's listeners for this protocol, empty where it has none. A client takes the one for TLS if it
    came so."""

    plain: str = ""
    tls: str = ""


def urls_of(owner: Owner, service_url: str, listener: str = "") -> BrokerUrls:
    """Of the broker that has a topic, for a client that came to `service_url`, or that asks for a listener by its
    name."""
    if listener:
        return _named(owner, listener)
    if owner.here:  # who came to this listener reaches it again
        return _one(service_url)
    urls = BrokerUrls(owner.url("pulsar"), owner.url("pulsar_tls"))
    over_tls = service_url.startswith(_TLS)
    if not (urls.tls if over_tls else urls.plain):
        kind = "for TLS" if over_tls else "without TLS"
        raise NotOwnerError(f"broker {owner.broker_id} has the topic, and no listener {kind} that is known")
    return urls


def _named(owner: Owner, listener: str) -> BrokerUrls:
    url = owner.url(listener)
    if not url.startswith((_TLS, _PLAIN)):
        known = sorted(name for name, url in owner.listeners.items() if url.startswith((_TLS, _PLAIN)))
        raise NotAllowedError(
            f"there is no listener named {listener[:80]!r}",
            hint=f"leave the name out, or use one of these: {', '.join(known) or 'none is known'}",
        )
    return _one(url)


def _one(url: str) -> BrokerUrls:
    return BrokerUrls(tls=url) if url.startswith(_TLS) else BrokerUrls(url)


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


log = logging.getLogger(__name__)


class Watch:
    """Tells its client what comes and goes, once it knows the list."""

    def __init__(self, session: "Session", watcher_id: int, topics: TopicListWatch) -> None:
        self._session = session
        self._watcher_id = watcher_id
        self._topics = topics
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._session.tasks.spawn(self._follow(), "watch")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _follow(self) -> None:
        """Until the client closes the watch, its connection is gone, or the list cannot be followed: then the
        client finds new topics by its own periodic look."""
        try:
            while True:
                change = await self._topics.next()
                await self._session.turns.pause(OPEN_UNITS)  # thousands may watch the same namespace
                self._session.answer(
                    api.CommandWatchTopicUpdate(
                        watcher_id=self._watcher_id,
                        new_topics=map(str, change.added),
                        deleted_topics=map(str, change.removed),
                        topics_hash=change.hash,
                    )
                )
                await self._session.outbox.drain()
        except ConnectionLostError as lost:
            log.info("topic watcher %d of %s ended: %s", self._watcher_id, self._session.peer, lost)
        except WeirError as failed:
            log.warning("topic watcher %d of %s dropped: %s", self._watcher_id, self._session.peer, failed)
        finally:
            self._topics.close()


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


_Get = api.CommandGetTopicsOfNamespace
_DOMAINS = {_Get.PERSISTENT: Domain.PERSISTENT, _Get.NON_PERSISTENT: Domain.NON_PERSISTENT}


@later(api.CommandGetTopicsOfNamespace)
async def topics_of_namespace(
    session: Session, command: api.CommandGetTopicsOfNamespace
) -> api.CommandGetTopicsOfNamespaceResponse:
    """The list, filtered if the client asked so."""
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
                domain=Domain.PERSISTENT,  # as in Pulsar: of the others a client learns by asking
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
