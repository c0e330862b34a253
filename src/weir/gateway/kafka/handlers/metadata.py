"""Metadata: the brokers, and the topics with their partitions and who leads each."""

from collections.abc import Sequence

from weir.broker.api import Owner
from weir.gateway.kafka.admin.operations import NOT_ASKED, cluster_operations, topic_operations
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code, RefusedError, code_of
from weir.gateway.kafka.nodes import NOBODY, Node
from weir.gateway.kafka.registry import handler
from weir.model.errors import WeirError
from weir.model.registry import TopicRecord
from weir.runtime.turns import LOOK_UP_UNITS
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_NULL_IS_ALL_SINCE = 1
_MAY_FORBID_CREATION_SINCE = 4
_BY_ID_SINCE = 12
_NO_ID = bytes(16)
_NO_LISTENER_SINCE = 6
#: Partitions that are described before it is asked whose turn it is.
_AT_ONCE = 64
_Wanted = m.MetadataRequest.MetadataRequestTopic
_Topic = m.MetadataResponse.MetadataResponseTopic
_Partition = m.MetadataResponse.MetadataResponsePartition
_Nodes = dict[int, Node]


@handler(ApiKey.METADATA, versions=(0, 13))
async def metadata(session: Session, request: m.MetadataRequest, version: int) -> m.MetadataResponse:
    services = session.services
    nodes = session.nodes.all()
    wants_all = request.topics is None or (version < _NULL_IS_ALL_SINCE and not request.topics)
    if wants_all:
        topics = await _all(session, nodes)
    else:
        create = version < _MAY_FORBID_CREATION_SINCE or request.allow_auto_topic_creation
        by_id = version >= _BY_ID_SINCE
        topics = await _all_named(session, nodes, request.topics or [], create, by_id=by_id)
        if version < _BY_ID_SINCE:
            for topic in topics:
                topic.name = topic.name or ""
    if request.include_topic_authorized_operations:
        _add_operations(session, topics)
    if version < _NO_LISTENER_SINCE:
        _say_no_leader(topics)
    operations = NOT_ASKED
    if request.include_cluster_authorized_operations:
        operations = cluster_operations(services.authoriser, session.role)
    return m.MetadataResponse(
        brokers=[
            m.MetadataResponse.MetadataResponseBroker(
                node_id=node.node_id, host=node.host, port=node.port, rack=node.rack
            )
            for node in session.nodes.known_by(nodes)
        ],
        cluster_id=services.settings.cluster_id,
        controller_id=session.nodes.controller(nodes),
        topics=topics,
        cluster_authorized_operations=operations,
    )


async def _all(session: Session, nodes: _Nodes) -> list[_Topic]:
    return [
        await _described(session, nodes, record) async for record in session.services.catalog.all(session.role)
    ]


async def _all_named(
    session: Session, nodes: _Nodes, wanted: list[_Wanted], create: bool, *, by_id: bool
) -> list[_Topic]:
    """Each once, however often it is named: a small request is not answered with gigabytes."""
    named = {(each.name, bytes(each.topic_id)): each for each in wanted}
    return [await _named(session, nodes, each, create, by_id=by_id) for each in named.values()]


async def _named(session: Session, nodes: _Nodes, wanted: _Wanted, create: bool, *, by_id: bool) -> _Topic:
    """One topic, as its client named it: by its id if that is there, else by its name."""
    catalog = session.services.catalog
    try:
        if wanted.name is None or bytes(wanted.topic_id) != _NO_ID:
            if not by_id:
                raise RefusedError(Code.INVALID_REQUEST, "this version of metadata knows topics by name only")
            return await _described(session, nodes, await catalog.known_by_id(session.role, wanted.topic_id))
        return await _described(session, nodes, await _found(session, wanted.name, create), wanted.name)
    except WeirError as failure:
        await session.turns.pause(LOOK_UP_UNITS)
        return _Topic(
            error_code=code_of(failure), name=wanted.name, topic_id=bytes(wanted.topic_id), partitions=[]
        )


async def _found(session: Session, name: str, create: bool) -> TopicRecord:
    catalog = session.services.catalog
    session.services.guard.check(session.role, catalog.base(name), None)
    return await (catalog.ensure(name) if create else catalog.look(name))


async def _described(session: Session, nodes: _Nodes, record: TopicRecord, name: str | None = None) -> _Topic:
    """A topic that there is; under the name that was asked for, since clients look for that."""
    catalog = session.services.catalog
    count = catalog.partitions_of(record)
    partitions: list[_Partition] = []
    for first in range(0, count, _AT_ONCE):
        indexes = range(first, min(count, first + _AT_ONCE))
        partitions += [
            _partition(session, nodes, owner, index)
            for index, owner in zip(indexes, _owners(session, record, indexes), strict=True)
        ]
        await session.turns.pause(len(indexes))
    return _Topic(
        error_code=Code.NONE,
        name=name or catalog.name_of(record.name),
        topic_id=catalog.id_of(record),
        partitions=partitions,
    )


def _owners(session: Session, record: TopicRecord, indexes: range) -> Sequence[Owner]:
    broker = session.services.broker
    return broker.owners_now(record.name, indexes) if record.partitions else [broker.owner_now(record.name)]


def _partition(session: Session, nodes: _Nodes, owner: Owner, index: int) -> _Partition:
    """Whoever leads it has it: there are no followers here. Of a leader that this client cannot reach it is told
    that there is one."""
    node = session.nodes.number_of(owner)
    reachable = node in nodes
    return _Partition(
        error_code=Code.NONE if reachable else Code.LISTENER_NOT_FOUND,
        partition_index=index,
        leader_id=node if reachable else NOBODY,
        leader_epoch=owner.epoch,
        replica_nodes=[node],
        isr_nodes=[node],
    )


def _say_no_leader(topics: list[_Topic]) -> None:
    """Older clients have another word for a leader that they cannot reach."""
    for topic in topics:
        for partition in topic.partitions:
            if partition.error_code == Code.LISTENER_NOT_FOUND:
                partition.error_code = Code.LEADER_NOT_AVAILABLE


def _add_operations(session: Session, topics: list[_Topic]) -> None:
    services = session.services
    for topic in topics:
        if topic.error_code == Code.NONE and topic.name is not None:
            base = services.catalog.base(topic.name)
            topic.topic_authorized_operations = topic_operations(services.authoriser, session.role, base)
