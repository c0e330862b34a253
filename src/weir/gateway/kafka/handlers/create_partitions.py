"""CreatePartitions: a partitioned topic gets more of them; it never gets fewer."""

from weir.gateway.kafka.admin.common import NAMED_TWICE, check_assignments, check_count, each, existing, named_once
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code, RefusedError
from weir.gateway.kafka.registry import handler
from weir.model.errors import NotAllowedError
from weir.model.registry import TopicRecord
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_Topic = m.CreatePartitionsRequest.CreatePartitionsTopic
_Result = m.CreatePartitionsResponse.CreatePartitionsTopicResult


@handler(ApiKey.CREATE_PARTITIONS, versions=(0, 3))
async def create_partitions(
    session: Session, request: m.CreatePartitionsRequest, version: int
) -> m.CreatePartitionsResponse:
    once, twice = named_once(request.topics, lambda topic: topic.name)

    async def grow(topic: _Topic) -> _Result:
        record = await existing(session, topic.name)
        _check(session, topic, record)
        check_count(session.services.registry, topic.count)
        if not request.validate_only:
            try:
                await session.services.registry.topics.grow(record.name, topic.count)
            except NotAllowedError as refused:  # somebody else let it grow meanwhile
                raise RefusedError(Code.INVALID_PARTITIONS, refused.what, hint=refused.hint) from refused
        return _Result(name=topic.name)

    grown = await each(once, grow, _failed, request.timeout_ms)
    return m.CreatePartitionsResponse(results=grown + [_failed(topic, *NAMED_TWICE) for topic in twice])


def _check(session: Session, topic: _Topic, record: TopicRecord) -> None:
    now = session.services.catalog.partitions_of(record)
    if topic.count <= now:
        raise RefusedError(
            Code.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {now} partition(s); {topic.count} would not be an increase.",
        )
    if not record.partitions:
        raise RefusedError(
            Code.INVALID_PARTITIONS,
            f"{record.name} is not a partitioned topic",
            hint="it was made by another protocol's client; make a partitioned one",
        )
    if topic.assignments is None:
        return
    if len(topic.assignments) != topic.count - now:
        raise RefusedError(
            Code.INVALID_REPLICA_ASSIGNMENT,
            f"{topic.count - now} partitions are added, and {len(topic.assignments)} were assigned",
        )
    check_assignments(session, [one.broker_ids for one in topic.assignments])


def _failed(topic: _Topic, code: int, text: str) -> _Result:
    return _Result(name=topic.name, error_code=code, error_message=text)
