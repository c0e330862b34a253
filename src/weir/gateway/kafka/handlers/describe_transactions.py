"""DescribeTransactions: what is open under transactional ids, since when, and where."""

from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.registry import handler
from weir.gateway.kafka.transacting import transaction_code, transactions_of
from weir.model.errors import NotAuthorisedError, TopicNotFoundError, WeirError
from weir.model.topics import TopicName
from weir.runtime.turns import LOOK_UP_UNITS
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_Told = m.DescribeTransactionsResponse.TransactionState
_Topic = m.DescribeTransactionsResponse.TopicData


@handler(ApiKey.DESCRIBE_TRANSACTIONS, versions=(0, 0))
async def describe_transactions(
    session: Session, request: m.DescribeTransactionsRequest, version: int
) -> m.DescribeTransactionsResponse:
    return m.DescribeTransactionsResponse(
        transaction_states=[await _describe(session, name) for name in dict.fromkeys(request.transactional_ids)]
    )


async def _describe(session: Session, name: str) -> _Told:
    transactions = transactions_of(session)
    await session.turns.pause(LOOK_UP_UNITS)
    try:
        found = await transactions.describe(name)
    except WeirError as failure:
        return _Told(error_code=transaction_code(failure), transactional_id=name)
    return _Told(
        transactional_id=name,
        transaction_state=found.state.value,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer_id,
        producer_epoch=found.epoch,
        topics=_topics(session, found.parts),
    )


def _topics(session: Session, parts: tuple[TopicName, ...]) -> list[_Topic]:
    """Those that the client may know of, under the names that it knows."""
    catalog, guard = session.services.catalog, session.services.guard
    found: dict[TopicName, _Topic] = {}
    for part in parts:
        try:
            guard.check(session.role, part, None)
            topic = found.setdefault(part.base, _Topic(topic=catalog.name_of(part.base), partitions=[]))
        except (NotAuthorisedError, TopicNotFoundError):
            continue
        topic.partitions.append(catalog.index_of(part))
    return list(found.values())
