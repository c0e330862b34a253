"""DescribeProducers: idempotent and transactional producers that wrote to partitions not long ago."""

from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import code_of, text_of
from weir.gateway.kafka.registry import handler
from weir.model.errors import WeirError
from weir.model.registry import Action
from weir.runtime.turns import LOOK_UP_UNITS
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_Partition = m.DescribeProducersResponse.PartitionResponse
_Producer = m.DescribeProducersResponse.ProducerState


@handler(ApiKey.DESCRIBE_PRODUCERS, versions=(0, 0))
async def describe_producers(
    session: Session, request: m.DescribeProducersRequest, version: int
) -> m.DescribeProducersResponse:
    named: dict[str, list[int]] = {}
    for topic in request.topics:
        named.setdefault(topic.name, []).extend(topic.partition_indexes)
    return m.DescribeProducersResponse(
        topics=[
            m.DescribeProducersResponse.TopicResponse(
                name=name,
                partitions=[await _describe(session, name, index) for index in dict.fromkeys(indexes)],
            )
            for name, indexes in named.items()
        ]
    )


async def _describe(session: Session, name: str, index: int) -> _Partition:
    services = session.services
    await session.turns.pause(LOOK_UP_UNITS)
    try:
        services.guard.check(session.role, services.catalog.base(name), Action.CONSUME)
        part = await services.catalog.look_part(name, index)
        topic = await services.broker.topic(part, role=session.role, create=False)
    except WeirError as failure:
        return _Partition(partition_index=index, error_code=code_of(failure), error_message=text_of(failure))
    return _Partition(
        partition_index=index,
        active_producers=[
            _Producer(
                producer_id=one.producer_id,
                producer_epoch=one.epoch,
                last_sequence=one.last_sequence,
                last_timestamp=one.last_ms,
                coordinator_epoch=0 if one.open_since >= 0 else -1,
                current_txn_start_offset=one.open_since,
            )
            for one in topic.idempotent_producers()
        ],
    )
