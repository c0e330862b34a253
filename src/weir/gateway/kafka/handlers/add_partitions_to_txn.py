"""AddPartitionsToTxn: partitions that a transaction is going to write to. All of a request's, or none.

Clients name one transaction. The form with several, since version 4, is what Kafka's brokers send to each other;
it is understood all the same.
"""

from collections.abc import Sequence

from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.registry import handler
from weir.gateway.kafka.transacting import fenced_code, find_parts, identity, transaction_code, transactions_of
from weir.model.errors import WeirError
from weir.model.topics import TopicName
from weir.runtime.turns import LOOK_UP_UNITS
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_FENCED_SINCE = 2
_SEVERAL_SINCE = 4
_Asked = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
_Transaction = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
_Topic = m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_Partition = m.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult


@handler(ApiKey.ADD_PARTITIONS_TO_TXN, versions=(0, 5))
async def add_partitions_to_txn(
    session: Session, request: m.AddPartitionsToTxnRequest, version: int
) -> m.AddPartitionsToTxnResponse:
    if version >= _SEVERAL_SINCE:
        return m.AddPartitionsToTxnResponse(
            results_by_transaction=[
                m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                    transactional_id=one.transactional_id, topic_results=await _add(session, one, version)
                )
                for one in request.transactions
            ]
        )
    only = _Transaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    return m.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await _add(session, only, version))


async def _add(session: Session, asked: _Transaction, version: int) -> list[_Topic]:
    parts: list[TopicName] = []
    refused: dict[tuple[str, int], int] = {}
    for topic in asked.topics:
        for index in topic.partitions:
            await session.turns.pause(LOOK_UP_UNITS)
            found, codes = await find_parts(session, topic.name, [index])
            parts += found.values()
            for code in codes.values():
                refused[topic.name, index] = code
    if refused:
        return _answer(asked.topics, Code.OPERATION_NOT_ATTEMPTED, refused)
    transactions = transactions_of(session)
    who = identity(asked.producer_id, asked.producer_epoch)
    try:
        if asked.verify_only:
            await transactions.verify(asked.transactional_id, who, parts)
        else:
            await transactions.add_partitions(asked.transactional_id, who, parts)
    except WeirError as failure:
        fenced, abortable = fenced_code(version, _FENCED_SINCE), version >= _SEVERAL_SINCE
        return _answer(asked.topics, transaction_code(failure, fenced=fenced, abortable=abortable))
    return _answer(asked.topics, Code.NONE)


def _answer(asked: Sequence[_Asked], code: int, others: dict[tuple[str, int], int] | None = None) -> list[_Topic]:
    """The same for all partitions, but for those that have a code of their own."""
    others = others or {}
    return [
        _Topic(
            name=topic.name,
            results_by_partition=[
                _Partition(partition_index=index, partition_error_code=others.get((topic.name, index), code))
                for index in topic.partitions
            ],
        )
        for topic in asked
    ]
