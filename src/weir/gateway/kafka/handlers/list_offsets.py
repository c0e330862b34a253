"""ListOffsets: where a partition begins and ends, and where a moment lies in it."""

from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code, RefusedError, code_of
from weir.gateway.kafka.nodes import UNSAID, check_epoch
from weir.gateway.kafka.registry import handler
from weir.model.errors import WeirError
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_READ_COMMITTED = 1
_NOTHING = -1
#: What is no moment but a wish, and the version in which it came to be.
_SINCE = {-1: 0, -2: 0, -3: 7, -4: 8, -5: 9, -6: 11}
_NEVER = 1 << 15
#: Looked up before others get a turn.
_AT_ONCE = 100
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
            if not number % _AT_ONCE:
                await session.turns.next()
        response.topics.append(m.ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=told))
    return response


async def _answer(
    session: Session, name: str, asked: _Asked, committed: bool, *, version: int, sought: set[TopicName]
) -> _Told:
    try:
        if asked.timestamp < 0 and version < _SINCE.get(asked.timestamp, _NEVER):
            raise RefusedError(
                Code.UNSUPPORTED_VERSION, f"{asked.timestamp} is no moment in version {version} of list offsets"
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
    """The offset, its record's time where that was asked for, and the epoch in which it was written."""
    services = session.services
    part = await services.catalog.look_known(session.role, name, asked.partition_index, sought)
    services.guard.check(session.role, part, Action.CONSUME)
    topic = await services.broker.topic(part, role=session.role, create=False)
    check_epoch(asked.current_leader_epoch, topic.leader_epoch, part)
    end = topic.stable_offset if committed else topic.end_offset
    match asked.timestamp:
        case -1:  # latest
            return end, _NOTHING, topic.leader_epoch
        case -2 | -4:  # earliest, and earliest that is not in a tier
            start = topic.reader().start_offset
            return start, _NOTHING, topic.epoch_at(start)
        case -3:  # that of the latest time
            found = await services.moments.of(topic, session.clock).latest()
        case -5 | -6:  # in a tier, or on its way there
            return _NOTHING, _NOTHING, UNSAID
        case moment_ms:
            found = await services.moments.of(topic, session.clock).first_at(moment_ms)
    if found is None or found.offset >= end:
        return _NOTHING, _NOTHING, UNSAID
    return found.offset, found.time_ms, topic.epoch_at(found.offset)
