"""OffsetForLeaderEpoch: where an epoch of a partition ended.

Weir's logs never diverge, so no reader finds that what it read is gone: every epoch that it was told of ends where
it is, or later.
"""

from weir.gateway.kafka.admin.common import check_named
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import code_of
from weir.gateway.kafka.nodes import UNSAID, check_epoch
from weir.gateway.kafka.registry import handler
from weir.model.errors import WeirError
from weir.model.topics import TopicName
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_Partition = m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition
_Result = m.OffsetForLeaderEpochResponse.EpochEndOffset

#: A consumer asks for all that it reads.
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


async def _end_of(session: Session, name: str, part: _Partition, sought: set[TopicName]) -> _Result:
    services = session.services
    await session.turns.next()  # there may be many, and all of them at hand
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
