"""DeleteRecords: everything before an offset goes, whoever has not read it."""

from weir.gateway.kafka.admin.common import each, existing, to_its_end
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code, RefusedError
from weir.gateway.kafka.registry import handler
from weir.model.policies import Cleanup, LogCompaction
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_Part = m.DeleteRecordsRequest.DeleteRecordsPartition
_Result = m.DeleteRecordsResponse.DeleteRecordsPartitionResult

#: An offset that means: everything that there is.
_ALL = -1
_NO_OFFSET = -1
#: In Kafka the leader deletes at once, and the time-out is for what followers need: there are none here, so also a
#: client that grants no time is told how it went.
_LEAST_TIMEOUT_MS = 10_000


@handler(ApiKey.DELETE_RECORDS, versions=(0, 2))
async def delete_records(
    session: Session, request: m.DeleteRecordsRequest, version: int
) -> m.DeleteRecordsResponse:
    wanted = [(topic.name, part) for topic in request.topics for part in topic.partitions]

    async def delete(one: tuple[str, _Part]) -> _Result:
        name, part = one
        return _Result(partition_index=part.partition_index, low_watermark=await _delete(session, name, part))

    results = iter(await each(wanted, delete, _failed, max(request.timeout_ms, _LEAST_TIMEOUT_MS)))
    return m.DeleteRecordsResponse(
        topics=[
            m.DeleteRecordsResponse.DeleteRecordsTopicResult(
                name=topic.name, partitions=[next(results) for _ in topic.partitions]
            )
            for topic in request.topics
        ]
    )


async def _delete(session: Session, name: str, part: _Part) -> int:
    services = session.services
    where = services.catalog.part_of(await existing(session, name), part.partition_index)
    cleanup = ((await services.registry.look_policies(where)).log_compaction or LogCompaction()).cleanup
    if cleanup is Cleanup.COMPACT:
        raise RefusedError(
            Code.POLICY_VIOLATION,
            f"{name} is compacted, and its records go by their keys only",
            hint="set cleanup.policy=compact,delete",
        )
    topic = await services.broker.topic(where, role=session.role, create=False)
    stored = topic.stored
    if stored is None:
        raise RefusedError(Code.INVALID_REQUEST, f"{name} stores nothing")
    offset = topic.end_offset if part.offset == _ALL else part.offset
    if not 0 <= offset <= topic.end_offset:
        raise RefusedError(Code.OFFSET_OUT_OF_RANGE, f"{name} ends at {topic.end_offset}, not at {offset}")
    await to_its_end(stored.delete_before(offset))
    return topic.reader().start_offset


def _failed(one: tuple[str, _Part], code: int, text: str) -> _Result:
    return _Result(partition_index=one[1].partition_index, low_watermark=_NO_OFFSET, error_code=code)
