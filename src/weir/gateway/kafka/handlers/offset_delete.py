"""OffsetDelete: a group forgets how far it has come on partitions that nobody reads for it any more."""

from weir.broker.api import GroupState
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code, code_of
from weir.gateway.kafka.grouping import (
    CONSUMER,
    group_code,
    groups_of,
    part_of,
    position_code,
    subscribed_topics,
)
from weir.gateway.kafka.registry import handler
from weir.model.errors import GroupNotEmptyError, GroupSubscribedError, WeirError
from weir.model.topics import TopicName
from weir.runtime.turns import LOOK_UP_UNITS
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_Told = m.OffsetDeleteResponse.OffsetDeleteResponsePartition
_ToldTopic = m.OffsetDeleteResponse.OffsetDeleteResponseTopic


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
    topics: list[_ToldTopic] = []
    awaited: list[tuple[_Told, TopicName]] = []
    for topic in request.topics:
        topics.append(_ToldTopic(name=topic.name, partitions=[]))
        for index in [partition.partition_index for partition in topic.partitions]:
            await session.turns.pause(LOOK_UP_UNITS)
            told = _Told(partition_index=index, error_code=Code.NONE)
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
