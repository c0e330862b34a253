"""OffsetCommit: how far a group has come; answered once that is durable."""

from weir.broker.api import CommittedOffset
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code, code_of
from weir.gateway.kafka.grouping import group_code, groups_of, part_of, position_code
from weir.gateway.kafka.registry import handler
from weir.model.errors import TopicNotFoundError, UnknownGroupError, WeirError
from weir.model.topics import TopicName
from weir.runtime.turns import LOOK_UP_UNITS
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_UNKNOWN_GROUPS_SINCE = 9
_TOPIC_IDS_SINCE = 10
_Topic = m.OffsetCommitRequest.OffsetCommitRequestTopic
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
                part = await _part(session, request.group_id, topic, partition.partition_index, version)
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
    """In the order of the request; some are known at once, the others when all is committed."""

    def __init__(self) -> None:
        self._topics: list[_ToldTopic] = []
        self._awaited: list[tuple[_Told, TopicName]] = []

    def begin(self, topic: _Topic) -> None:
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


async def _part(session: Session, group: str, topic: _Topic, index: int, version: int) -> TopicName:
    name = topic.name
    if version >= _TOPIC_IDS_SINCE:
        catalog = session.services.catalog
        name = catalog.name_of((await catalog.known_by_id(session.role, topic.topic_id)).name)
    return await part_of(session, group, name, index)


def _code(refused: WeirError, version: int) -> int:
    if version >= _TOPIC_IDS_SINCE and isinstance(refused, TopicNotFoundError):
        return Code.UNKNOWN_TOPIC_ID
    return code_of(refused)
