"""OffsetFetch: how far groups have come, on some partitions or on all."""

from collections.abc import Sequence
from typing import NamedTuple

from weir.broker.api import CommittedOffset
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.grouping import group_code, groups_of, may_use, part_of, position_code
from weir.gateway.kafka.registry import handler
from weir.model.errors import TopicNotFoundError, WeirError
from weir.model.topics import TopicName
from weir.runtime.turns import LOOK_UP_UNITS
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey
from weir.wire.kafka.primitives import NO_UUID

_SEVERAL_SINCE = 8
_TOPIC_IDS_SINCE = 10
_Group = m.OffsetFetchResponse.OffsetFetchResponseGroup
_Topic = m.OffsetFetchResponse.OffsetFetchResponseTopics
_Partition = m.OffsetFetchResponse.OffsetFetchResponsePartitions
_NOWHERE = CommittedOffset(-1)


class _Wanted(NamedTuple):
    """A topic as the client named it, by name or by id."""

    name: str
    topic_id: bytes
    indexes: Sequence[int]


@handler(ApiKey.OFFSET_FETCH, versions=(1, 10))
async def offset_fetch(session: Session, request: m.OffsetFetchRequest, version: int) -> m.OffsetFetchResponse:
    stable = request.require_stable
    if version >= _SEVERAL_SINCE:
        groups = []
        named = {group.group_id: group for group in request.groups}  # each once, however often it is named
        for group in named.values():
            wanted = (
                None
                if group.topics is None
                else [_Wanted(t.name, bytes(t.topic_id), t.partition_indexes) for t in group.topics]
            )
            groups.append(await _of_group(session, group.group_id, wanted, version, stable))
        return m.OffsetFetchResponse(groups=groups)
    wanted = (
        None if request.topics is None else [_Wanted(t.name, NO_UUID, t.partition_indexes) for t in request.topics]
    )
    return _as_one(await _of_group(session, request.group_id, wanted, version, stable), wanted)


async def _of_group(
    session: Session, group: str, wanted: Sequence[_Wanted] | None, version: int, stable: bool
) -> _Group:
    try:
        if wanted is None:
            return await _everything(session, group, version, stable)
        return await _some(session, group, wanted, version, stable)
    except WeirError as failure:
        return _Group(group_id=group, topics=[], error_code=group_code(failure))


async def _everything(session: Session, group: str, version: int, stable: bool) -> _Group:
    """All positions on topics that have a name in Kafka and that the client may consume."""
    catalog = session.services.catalog
    found = await groups_of(session).fetch(group, stable=stable)
    topics: dict[TopicName, _Topic] = {}
    for part, position in found.items():
        await session.turns.pause()
        base = part.base
        try:
            if base not in topics:
                name = catalog.name_of(base)
                if not await may_use(session, group, [part]):
                    continue
                by_id = version >= _TOPIC_IDS_SINCE
                topic_id = catalog.id_of(await catalog.look(name)) if by_id else NO_UUID
                topics[base] = _Topic(name=name, topic_id=topic_id, partitions=[])
        except TopicNotFoundError:
            continue
        topics[base].partitions.append(_told(catalog.index_of(part), position))
    return _Group(group_id=group, topics=list(topics.values()))


async def _some(session: Session, group: str, wanted: Sequence[_Wanted], version: int, stable: bool) -> _Group:
    topics: list[_Topic] = []
    awaited: list[tuple[_Topic, int, TopicName | WeirError]] = []
    for asked in wanted:
        topic = _Topic(name=asked.name, topic_id=asked.topic_id, partitions=[])
        topics.append(topic)
        for index in asked.indexes:
            awaited.append((topic, index, await _part(session, group, asked, index, version)))
            await session.turns.pause(LOOK_UP_UNITS)
    parts = [part for _, _, part in awaited if isinstance(part, TopicName)]
    found = await groups_of(session).fetch(group, parts, stable=stable)
    for topic, index, part in awaited:
        topic.partitions.append(
            _told(index, found.get(part, _NOWHERE))
            if isinstance(part, TopicName)
            else _refused(index, part, version)
        )
    return _Group(group_id=group, topics=topics)


async def _part(session: Session, group: str, asked: _Wanted, index: int, version: int) -> TopicName | WeirError:
    try:
        name = asked.name
        if version >= _TOPIC_IDS_SINCE:
            catalog = session.services.catalog
            name = catalog.name_of((await catalog.known_by_id(session.role, asked.topic_id)).name)
        return await part_of(session, group, name, index)
    except WeirError as refused:
        return refused


def _refused(index: int, why: WeirError, version: int) -> _Partition:
    """A topic that there is not has no position; only by its id is it asked for in vain."""
    if not isinstance(why, TopicNotFoundError):
        return _told(index, why)
    told = _told(index, _NOWHERE)
    if version >= _TOPIC_IDS_SINCE:
        told.error_code = Code.UNKNOWN_TOPIC_ID
    return told


def _told(index: int, position: CommittedOffset | WeirError) -> _Partition:
    if isinstance(position, WeirError):
        code = position_code(position)
        return _Partition(
            partition_index=index, committed_offset=-1, committed_leader_epoch=-1, metadata="", error_code=code
        )
    return _Partition(
        partition_index=index,
        committed_offset=position.offset,
        committed_leader_epoch=position.leader_epoch,
        metadata=position.metadata,
    )


def _as_one(group: _Group, wanted: Sequence[_Wanted] | None) -> m.OffsetFetchResponse:
    """For versions that ask for one group. The oldest have no place for its error but with each partition."""
    topics = group.topics
    if group.error_code:
        nowhere = [(asked.name, asked.indexes) for asked in wanted or ()]
        topics = [
            _Topic(
                name=name,
                partitions=[
                    _Partition(
                        partition_index=index,
                        committed_offset=-1,
                        committed_leader_epoch=-1,
                        metadata="",
                        error_code=group.error_code,
                    )
                    for index in indexes
                ],
            )
            for name, indexes in nowhere
        ]
    return m.OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            m.OffsetFetchResponse.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    m.OffsetFetchResponse.OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in topics
        ],
    )
