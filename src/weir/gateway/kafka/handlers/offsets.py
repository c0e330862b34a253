"""Handlers of committed offsets: OffsetCommit (answers when they are durable), OffsetFetch and OffsetDelete."""

from collections.abc import Sequence
from typing import NamedTuple

from weir.broker.api.groups import GroupState
from weir.gateway.kafka.api_table import handler
from weir.gateway.kafka.errors import Code, code_of
from weir.gateway.kafka.handlers.groups import (
    CONSUMER,
    group_code,
    groups_of,
    may_use,
    part_of,
    position_code,
    subscribed_topics,
)
from weir.gateway.kafka.session import Session
from weir.model.errors import (
    GroupNotEmptyError,
    GroupSubscribedError,
    TopicNotFoundError,
    UnknownGroupError,
    WeirError,
)
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset
from weir.runtime.tasks import LOOK_UP_UNITS
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.primitives import NO_UUID

_UNKNOWN_GROUPS_SINCE = 9
_TOPIC_IDS_SINCE = 10
_OffsetCommitTopic = m.OffsetCommitRequest.OffsetCommitRequestTopic
_ToldTopic = m.OffsetCommitResponse.OffsetCommitResponseTopic
_Told = m.OffsetCommitResponse.OffsetCommitResponsePartition


@handler(ApiKey.OFFSET_COMMIT, versions=(2, 10))
async def offset_commit(session: Session, request: m.OffsetCommitRequest, version: int) -> m.OffsetCommitResponse:
    answer = _Answer()
    positions: dict[TopicName, CommittedOffset] = {}
    for topic in request.topics:
        answer.begin(topic)
        for partition in topic.partitions:
            await session.turns.pause(LOOK_UP_UNITS)
            try:
                part = await _offset_commit_part(
                    session, request.group_id, topic, partition.partition_index, version
                )
            except WeirError as refused:
                answer.say(partition.partition_index, _code(refused, version))
                continue
            answer.await_part(partition.partition_index, part)
            positions[part] = CommittedOffset(
                partition.committed_offset,
                max(-1, partition.committed_leader_epoch),
                partition.committed_metadata or "",
            )
    try:
        results = await groups_of(session).commit(
            request.group_id,
            positions,
            member_id=request.member_id,
            generation=request.generation_id_or_member_epoch,
            instance_id=request.group_instance_id,
        )
    except UnknownGroupError:
        code = Code.GROUP_ID_NOT_FOUND if version >= _UNKNOWN_GROUPS_SINCE else Code.ILLEGAL_GENERATION
        return answer.done(dict.fromkeys(positions, code))
    except WeirError as failure:
        return answer.done(dict.fromkeys(positions, group_code(failure)))
    return answer.done({part: Code.NONE if why is None else position_code(why) for part, why in results.items()})


class _Answer:
    """Builds the response in the order of the request. Refused partitions have their code at once, the others get
    theirs after the commit."""

    def __init__(self) -> None:
        self._topics: list[_ToldTopic] = []
        self._awaited: list[tuple[_Told, TopicName]] = []

    def begin(self, topic: _OffsetCommitTopic) -> None:
        self._topics.append(_ToldTopic(name=topic.name, topic_id=bytes(topic.topic_id), partitions=[]))

    def say(self, index: int, code: int) -> _Told:
        told = _Told(partition_index=index, error_code=code)
        self._topics[-1].partitions.append(told)
        return told

    def await_part(self, index: int, part: TopicName) -> None:
        self._awaited.append((self.say(index, Code.NONE), part))

    def done(self, codes: dict[TopicName, int]) -> m.OffsetCommitResponse:
        for told, part in self._awaited:
            told.error_code = codes[part]
        return m.OffsetCommitResponse(topics=self._topics)


async def _offset_commit_part(
    session: Session, group: str, topic: _OffsetCommitTopic, index: int, version: int
) -> TopicName:
    name = topic.name
    if version >= _TOPIC_IDS_SINCE:
        catalog = session.services.catalog
        name = catalog.name_of((await catalog.known_by_id(session.role, topic.topic_id)).name)
    return await part_of(session, group, name, index)


def _code(refused: WeirError, version: int) -> int:
    if version >= _TOPIC_IDS_SINCE and isinstance(refused, TopicNotFoundError):
        return Code.UNKNOWN_TOPIC_ID
    return code_of(refused)


_SEVERAL_SINCE = 8
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
        named = {group.group_id: group for group in request.groups}  # each once, even if the request repeats it
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
    """All offsets on topics that have a Kafka name and that the client may consume."""
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
    """An unknown topic has no committed offset; it is an error only in a request by topic id."""
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
    """The response for versions with one group per request. The oldest have an error field only per partition."""
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


_OffsetDeleteTold = m.OffsetDeleteResponse.OffsetDeleteResponsePartition
_OffsetDeleteToldTopic = m.OffsetDeleteResponse.OffsetDeleteResponseTopic


@handler(ApiKey.OFFSET_DELETE, versions=(0, 0))
async def offset_delete(session: Session, request: m.OffsetDeleteRequest, version: int) -> m.OffsetDeleteResponse:
    groups, name = groups_of(session), request.group_id
    try:
        info = await groups.describe(name)
        if info.state is not GroupState.EMPTY and info.protocol_type != CONSUMER:
            raise GroupNotEmptyError(f"group {name!r} has members")
        read = subscribed_topics(info)
    except WeirError as failure:
        return m.OffsetDeleteResponse(error_code=group_code(failure))
    topics: list[_OffsetDeleteToldTopic] = []
    awaited: list[tuple[_OffsetDeleteTold, TopicName]] = []
    for topic in request.topics:
        topics.append(_OffsetDeleteToldTopic(name=topic.name, partitions=[]))
        for index in [partition.partition_index for partition in topic.partitions]:
            await session.turns.pause(LOOK_UP_UNITS)
            told = _OffsetDeleteTold(partition_index=index, error_code=Code.NONE)
            topics[-1].partitions.append(told)
            try:
                if read is None or topic.name in read:
                    raise GroupSubscribedError(f"members of group {name!r} read {topic.name}")
                awaited.append((told, await part_of(session, name, topic.name, index)))
            except WeirError as refused:
                told.error_code = code_of(refused)
    try:
        results = await groups.delete_offsets(name, [part for _, part in awaited])
    except WeirError as failure:
        return m.OffsetDeleteResponse(error_code=group_code(failure))
    for told, part in awaited:
        failed = results[part]
        told.error_code = Code.NONE if failed is None else position_code(failed)
    return m.OffsetDeleteResponse(topics=topics)
