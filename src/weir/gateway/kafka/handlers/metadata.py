"""Metadata: the brokers, and the topics with their partitions."""

from weir.gateway.kafka.admin.operations import NOT_ASKED, cluster_operations, topic_operations
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code, RefusedError, code_of
from weir.gateway.kafka.registry import handler
from weir.model.errors import TopicNotFoundError, WeirError
from weir.model.registry import TopicRecord
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_NULL_IS_ALL_SINCE = 1
_MAY_FORBID_CREATION_SINCE = 4
_BY_ID_SINCE = 12
_NO_ID = bytes(16)
#: Looked up before others get a turn.
_AT_ONCE = 100
_Wanted = m.MetadataRequest.MetadataRequestTopic
_Topic = m.MetadataResponse.MetadataResponseTopic
_Partition = m.MetadataResponse.MetadataResponsePartition


@handler(ApiKey.METADATA, versions=(0, 13))
async def metadata(session: Session, request: m.MetadataRequest, version: int) -> m.MetadataResponse:
    services = session.services
    settings = services.settings
    wants_all = request.topics is None or (version < _NULL_IS_ALL_SINCE and not request.topics)
    if wants_all:
        topics = await _all(session)
    else:
        create = version < _MAY_FORBID_CREATION_SINCE or request.allow_auto_topic_creation
        topics = await _all_named(session, request.topics or [], create, by_id=version >= _BY_ID_SINCE)
        if version < _BY_ID_SINCE:
            for topic in topics:
                topic.name = topic.name or ""
    if request.include_topic_authorized_operations:
        _add_operations(session, topics)
    broker = m.MetadataResponse.MetadataResponseBroker(
        node_id=settings.node_id, host=session.advertised_host, port=session.advertised_port
    )
    operations = NOT_ASKED
    if request.include_cluster_authorized_operations:
        operations = cluster_operations(services.authoriser, session.role)
    return m.MetadataResponse(
        brokers=[broker],
        cluster_id=settings.cluster_id,
        controller_id=settings.node_id,
        topics=topics,
        cluster_authorized_operations=operations,
    )


async def _all(session: Session) -> list[_Topic]:
    topics = []
    for number, record in enumerate(session.services.catalog.all(session.role), 1):
        topics.append(_described(session, record))
        if not number % _AT_ONCE:
            await session.turns.next()
    return topics


async def _all_named(session: Session, wanted: list[_Wanted], create: bool, *, by_id: bool) -> list[_Topic]:
    """Each once, however often it is named: a small request is not answered with gigabytes."""
    named = {(each.name, bytes(each.topic_id)): each for each in wanted}
    topics = []
    for number, each in enumerate(named.values(), 1):
        topics.append(await _named(session, each, create, by_id=by_id))
        if not number % _AT_ONCE:
            await session.turns.next()
    return topics


async def _named(session: Session, wanted: _Wanted, create: bool, *, by_id: bool) -> _Topic:
    """One topic, as its client named it: by its id if that is there, else by its name."""
    catalog = session.services.catalog
    try:
        if wanted.name is None or bytes(wanted.topic_id) != _NO_ID:
            if not by_id:
                raise RefusedError(Code.INVALID_REQUEST, "this version of metadata knows topics by name only")
            return _described(session, catalog.known_by_id(session.role, wanted.topic_id))
        return _described(session, await _found(session, wanted.name, create), wanted.name)
    except WeirError as failure:
        return _Topic(
            error_code=code_of(failure), name=wanted.name, topic_id=bytes(wanted.topic_id), partitions=[]
        )


async def _found(session: Session, name: str, create: bool) -> TopicRecord:
    catalog = session.services.catalog
    session.services.guard.check(session.role, catalog.base(name), None)
    try:
        return catalog.topic(name)
    except TopicNotFoundError:
        if not create:
            raise
        return await catalog.ensure(name)


def _described(session: Session, record: TopicRecord, name: str | None = None) -> _Topic:
    """A topic that there is; under the name that was asked for, since clients look for that."""
    catalog, node = session.services.catalog, session.services.settings.node_id
    return _Topic(
        error_code=Code.NONE,
        name=name or catalog.name_of(record.name),
        topic_id=catalog.id_of(record),
        partitions=[
            _Partition(
                partition_index=index, leader_id=node, leader_epoch=0, replica_nodes=[node], isr_nodes=[node]
            )
            for index in range(catalog.partitions_of(record))
        ],
    )


def _add_operations(session: Session, topics: list[_Topic]) -> None:
    services = session.services
    for topic in topics:
        if topic.error_code == Code.NONE and topic.name is not None:
            base = services.catalog.base(topic.name)
            topic.topic_authorized_operations = topic_operations(services.authoriser, session.role, base)
