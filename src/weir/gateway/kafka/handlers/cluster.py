"""Handlers that describe the cluster and its partitions: Metadata, DescribeCluster, FindCoordinator, ListOffsets,
OffsetForLeaderEpoch, ApiVersions and DescribeAcls.

Weir's logs never diverge, so OffsetForLeaderEpoch never makes a consumer truncate: every epoch that a consumer has
seen ends at its position or later. DescribeAcls reports that ACLs are disabled: Weir grants permissions to roles
instead.
"""

import re
from collections.abc import Sequence

from weir.broker.api.broker import Owner
from weir.gateway.kafka.admin_requests import NOT_ASKED, check_named, cluster_operations, topic_operations
from weir.gateway.kafka.api_table import api_versions as response
from weir.gateway.kafka.api_table import handler
from weir.gateway.kafka.errors import Code, RefusedError, code_of, text_of
from weir.gateway.kafka.handlers.groups import group_code, groups_of
from weir.gateway.kafka.metadata import NOBODY, UNSAID, Node, check_epoch
from weir.gateway.kafka.session import Session
from weir.gateway.kafka.transaction_errors import transaction_code, transactions_of
from weir.model.errors import WeirError
from weir.model.registry import Action, TopicRecord
from weir.model.topics import TopicName
from weir.runtime.tasks import LOOK_UP_UNITS
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey

_NULL_IS_ALL_SINCE = 1
_MAY_FORBID_CREATION_SINCE = 4
_BY_ID_SINCE = 12
_NO_ID = bytes(16)
_NO_LISTENER_SINCE = 6
#: Partitions that the handler describes before it yields to other connections.
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
    """Describe each topic once, even if the request repeats it: a small request must not cause a huge response."""
    named = {(each.name, bytes(each.topic_id)): each for each in wanted}
    return [await _named(session, nodes, each, create, by_id=by_id) for each in named.values()]


async def _named(session: Session, nodes: _Nodes, wanted: _Wanted, create: bool, *, by_id: bool) -> _Topic:
    """Describe one topic by its id if the request has one, else by its name."""
    catalog = session.services.catalog
    try:
        if wanted.name is None or bytes(wanted.topic_id) != _NO_ID:
            if not by_id:
                raise RefusedError(Code.INVALID_REQUEST, "this version of Metadata finds topics by name only")
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
    """Describe an existing topic under the name of the request, because clients match the response by name."""
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
    """Describe a partition: its leader is the only replica, since Weir has no followers. The leader may have no
    address on this listener; the response then has LISTENER_NOT_FOUND and still names it as a replica."""
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
    """Replace LISTENER_NOT_FOUND by LEADER_NOT_AVAILABLE for clients of older versions."""
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


_BROKERS = 1
_CONTROLLERS = 2


@handler(ApiKey.DESCRIBE_CLUSTER, versions=(0, 2))
async def describe_cluster(
    session: Session, request: m.DescribeClusterRequest, version: int
) -> m.DescribeClusterResponse:
    services = session.services
    if request.endpoint_type != _BROKERS:
        known = request.endpoint_type == _CONTROLLERS
        return m.DescribeClusterResponse(
            error_code=Code.MISMATCHED_ENDPOINT_TYPE if known else Code.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="this is a broker; request endpoint type 1 (brokers)",
            endpoint_type=_BROKERS,
            cluster_authorized_operations=NOT_ASKED,
        )
    operations = NOT_ASKED
    if request.include_cluster_authorized_operations:
        operations = cluster_operations(services.authoriser, session.role)
    nodes = session.nodes.all()
    return m.DescribeClusterResponse(
        endpoint_type=_BROKERS,
        cluster_id=services.settings.cluster_id,
        controller_id=session.nodes.controller(nodes),
        brokers=[
            m.DescribeClusterResponse.DescribeClusterBroker(
                broker_id=node.node_id, host=node.host, port=node.port, rack=node.rack
            )
            for node in nodes.values()
        ],
        cluster_authorized_operations=operations,
    )


_SEVERAL_SINCE = 4
_GROUP, _TRANSACTION = 0, 1
_Found = m.FindCoordinatorResponse.Coordinator


@handler(ApiKey.FIND_COORDINATOR, versions=(0, 6))
async def find_coordinator(
    session: Session, request: m.FindCoordinatorRequest, version: int
) -> m.FindCoordinatorResponse:
    keys = request.coordinator_keys if version >= _SEVERAL_SINCE else [request.key]
    found = []
    for key in keys:
        found.append(await _find_coordinator_find(session, request.key_type, key))
        await session.turns.pause(LOOK_UP_UNITS)
    if version >= _SEVERAL_SINCE:
        return m.FindCoordinatorResponse(coordinators=found)
    one = found[0]
    return m.FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _find_coordinator_find(session: Session, key_type: int, key: str) -> _Found:
    if key_type not in (_GROUP, _TRANSACTION):
        return _refused(key, Code.INVALID_REQUEST, "only groups and transactions have coordinators")
    try:
        has_transactions = session.services.transactions is not None  # one broker coordinates both
        transactional = key_type == _TRANSACTION and has_transactions
        coordinator = transactions_of(session) if transactional else groups_of(session)
        node = session.nodes.of(await coordinator.owner(key))
    except WeirError as failure:
        code = group_code(failure) if key_type == _GROUP else transaction_code(failure)
        return _refused(key, code, text_of(failure))
    if node is None:
        return _refused(key, Code.COORDINATOR_NOT_AVAILABLE, "the coordinator has no listener of this name")
    return _Found(key=key, node_id=node.node_id, host=node.host, port=node.port)


def _refused(key: str, code: int, text: str) -> _Found:
    return _Found(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=text)


@handler(ApiKey.DESCRIBE_ACLS, versions=(1, 3))
async def describe_acls(session: Session, request: m.DescribeAclsRequest, version: int) -> m.DescribeAclsResponse:
    """Answer like a Kafka broker without an authorizer, so that tools that copy ACLs (MirrorMaker 2) skip them."""
    return m.DescribeAclsResponse(
        error_code=Code.SECURITY_DISABLED,
        error_message="Weir has no ACLs; show the permissions of roles with: weir namespaces, weir topics",
    )


_SOFTWARE_SINCE = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", re.ASCII)


@handler(ApiKey.API_VERSIONS, versions=(0, 4), before_auth=True)
async def api_versions(session: Session, request: m.ApiVersionsRequest, version: int) -> m.ApiVersionsResponse:
    if version >= _SOFTWARE_SINCE:
        named = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE.fullmatch(name) for name in named):
            return response(Code.INVALID_REQUEST, version)
    return response(version=version)


_READ_COMMITTED = 1
_NOTHING = -1
#: Special timestamps, with the version that introduced each.
_SINCE = {-1: 0, -2: 0, -3: 7, -4: 8, -5: 9, -6: 11}
_NEVER = 1 << 15
#: Partitions looked up before the handler yields.
_LIST_OFFSETS_AT_ONCE = 100
_Asked = m.ListOffsetsRequest.ListOffsetsPartition
_Told = m.ListOffsetsResponse.ListOffsetsPartitionResponse


@handler(ApiKey.LIST_OFFSETS, versions=(1, 11))
async def list_offsets(session: Session, request: m.ListOffsetsRequest, version: int) -> m.ListOffsetsResponse:
    committed = request.isolation_level == _READ_COMMITTED
    response = m.ListOffsetsResponse()
    sought: set[TopicName] = set()
    for topic in request.topics:
        told = []
        for number, asked in enumerate(topic.partitions, 1):
            told.append(await _answer(session, topic.name, asked, committed, version=version, sought=sought))
            if not number % _LIST_OFFSETS_AT_ONCE:
                await session.turns.next()
        response.topics.append(m.ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=told))
    return response


async def _answer(
    session: Session, name: str, asked: _Asked, committed: bool, *, version: int, sought: set[TopicName]
) -> _Told:
    try:
        if asked.timestamp < 0 and version < _SINCE.get(asked.timestamp, _NEVER):
            raise RefusedError(
                Code.UNSUPPORTED_VERSION, f"version {version} of ListOffsets has no timestamp {asked.timestamp}"
            )
        offset, time_ms, epoch = await _find(session, name, asked, committed, sought)
    except WeirError as failure:
        return _Told(
            partition_index=asked.partition_index, error_code=code_of(failure), timestamp=_NOTHING, offset=_NOTHING
        )
    return _Told(partition_index=asked.partition_index, timestamp=time_ms, offset=offset, leader_epoch=epoch)


async def _find(
    session: Session, name: str, asked: _Asked, committed: bool, sought: set[TopicName]
) -> tuple[int, int, int]:
    """The offset, the record's time if the request searches by time, and the leader epoch of the offset."""
    services = session.services
    part = await services.catalog.look_known(session.role, name, asked.partition_index, sought)
    services.guard.check(session.role, part, Action.CONSUME)
    topic = await services.broker.topic(part, role=session.role, create=False)
    check_epoch(asked.current_leader_epoch, topic.leader_epoch, part)
    end = topic.stable_offset if committed else topic.end_offset
    match asked.timestamp:
        case -1:  # latest
            return end, _NOTHING, topic.leader_epoch
        case -2 | -4:  # earliest, and earliest local (not in tiered storage)
            start = topic.reader().start_offset
            return start, _NOTHING, topic.epoch_at(start)
        case -3:  # the record with the latest time
            found = await services.moments.of(topic, session.clock).latest()
        case -5 | -6:  # in tiered storage, or pending upload
            return _NOTHING, _NOTHING, UNSAID
        case moment_ms:
            found = await services.moments.of(topic, session.clock).first_at(moment_ms)
    if found is None or found.offset >= end:
        return _NOTHING, _NOTHING, UNSAID
    return found.offset, found.time_ms, topic.epoch_at(found.offset)


_OffsetForLeaderEpochPartition = m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition
_Result = m.OffsetForLeaderEpochResponse.EpochEndOffset

#: A consumer names all partitions that it reads.
_MOST_PARTITIONS = 100_000


@handler(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=(2, 4))
async def offset_for_leader_epoch(
    session: Session, request: m.OffsetForLeaderEpochRequest, version: int
) -> m.OffsetForLeaderEpochResponse:
    check_named(sum(len(topic.partitions) for topic in request.topics), _MOST_PARTITIONS)
    sought: set[TopicName] = set()
    return m.OffsetForLeaderEpochResponse(
        topics=[
            m.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[await _end_of(session, topic.topic, part, sought) for part in topic.partitions],
            )
            for topic in request.topics
        ]
    )


async def _end_of(
    session: Session, name: str, part: _OffsetForLeaderEpochPartition, sought: set[TopicName]
) -> _Result:
    services = session.services
    await session.turns.next()  # a request may name many partitions, and cached ones never wait
    try:
        services.guard.check(session.role, services.catalog.base(name), None)
        where = await services.catalog.look_part(name, part.partition, sought)
        topic = await services.broker.topic(where, role=session.role, create=False)
        check_epoch(part.current_leader_epoch, topic.leader_epoch, where)
    except WeirError as failure:
        return _Result(
            partition=part.partition, error_code=code_of(failure), leader_epoch=UNSAID, end_offset=UNSAID
        )
    epoch, end = topic.epoch_end(part.leader_epoch)
    return _Result(partition=part.partition, leader_epoch=epoch, end_offset=end)
