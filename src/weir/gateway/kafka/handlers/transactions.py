"""Handlers of transactions and of idempotent producers.

- InitProducerId assigns a producer id and epoch.
- AddPartitionsToTxn adds all partitions of a request to a transaction, or none. Clients name one transaction;
  Kafka's brokers use the form with several (since version 4), which Weir supports, too.
- AddOffsetsToTxn adds a group; TxnOffsetCommit stores its offsets, which apply if the transaction commits. Since
  version 5, TxnOffsetCommit adds the group itself.
- EndTxn commits or aborts; since version 5 it returns a new epoch or producer id for the next transaction.
- DescribeProducers lists recent producers of partitions. DescribeTransactions describes open transactions.
- ListTransactions lists the transactional ids that this broker coordinates and that the client may use.
"""

from collections.abc import Sequence

from weir.broker.api.transactions import TransactionInfo
from weir.gateway.kafka.api_table import handler
from weir.gateway.kafka.errors import Code, code_of, text_of
from weir.gateway.kafka.handlers.groups import group_code, groups_of, part_of
from weir.gateway.kafka.session import Session
from weir.gateway.kafka.transaction_errors import (
    fenced_code,
    find_parts,
    id_matcher,
    identity,
    transaction_code,
    transactions_of,
)
from weir.model.errors import NotAllowedError, NotAuthorisedError, TopicNotFoundError, WeirError
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset, TransactionState
from weir.runtime.tasks import LOOK_UP_UNITS
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey

_DescribeProducersPartition = m.DescribeProducersResponse.PartitionResponse
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


async def _describe(session: Session, name: str, index: int) -> _DescribeProducersPartition:
    services = session.services
    await session.turns.pause(LOOK_UP_UNITS)
    try:
        services.guard.check(session.role, services.catalog.base(name), Action.CONSUME)
        part = await services.catalog.look_part(name, index)
        topic = await services.broker.topic(part, role=session.role, create=False)
    except WeirError as failure:
        return _DescribeProducersPartition(
            partition_index=index, error_code=code_of(failure), error_message=text_of(failure)
        )
    return _DescribeProducersPartition(
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


_INIT_PRODUCER_ID_FENCED_SINCE = 4


@handler(ApiKey.INIT_PRODUCER_ID, versions=(0, 6))
async def init_producer_id(
    session: Session, request: m.InitProducerIdRequest, version: int
) -> m.InitProducerIdResponse:
    # The same codes as from a Kafka 4.1 broker that permits two-phase commit to no client.
    if request.enable2_pc:
        return _refused(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if request.keep_prepared_txn:
        return _refused(Code.UNSUPPORTED_VERSION)
    if (request.producer_id < 0) != (request.producer_epoch < 0):
        return _refused(Code.INVALID_REQUEST)
    expected = identity(request.producer_id, request.producer_epoch) if request.producer_id >= 0 else None
    try:
        found = await transactions_of(session).init(
            request.transactional_id,
            timeout_ms=request.transaction_timeout_ms,
            expected=expected,
        )
    except WeirError as failure:
        return _refused(transaction_code(failure, fenced=fenced_code(version, _INIT_PRODUCER_ID_FENCED_SINCE)))
    return m.InitProducerIdResponse(producer_id=found.producer_id, producer_epoch=found.epoch)


def _refused(code: int) -> m.InitProducerIdResponse:
    return m.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


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
    """The same code for all partitions, except those that have a code in `others`."""
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


@handler(ApiKey.ADD_OFFSETS_TO_TXN, versions=(0, 4))
async def add_offsets_to_txn(
    session: Session, request: m.AddOffsetsToTxnRequest, version: int
) -> m.AddOffsetsToTxnResponse:
    try:
        group = await groups_of(session).kept(request.group_id)
    except WeirError as refused:
        return m.AddOffsetsToTxnResponse(error_code=group_code(refused))
    who = identity(request.producer_id, request.producer_epoch)
    try:
        await transactions_of(session).add_offsets(request.transactional_id, who, group)
    except WeirError as failure:
        code = transaction_code(failure, fenced=fenced_code(version, _FENCED_SINCE))
        return m.AddOffsetsToTxnResponse(error_code=code)
    return m.AddOffsetsToTxnResponse(error_code=Code.NONE)


_TxnOffsetCommitTopic = m.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_TxnOffsetCommitPartition = m.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition
_MAX_METADATA_BYTES = 4096
_TXN_OFFSET_COMMIT_ABORTABLE_SINCE = 4
_JOINS_SINCE = 5


@handler(ApiKey.TXN_OFFSET_COMMIT, versions=(0, 5))
async def txn_offset_commit(
    session: Session, request: m.TxnOffsetCommitRequest, version: int
) -> m.TxnOffsetCommitResponse:
    positions: dict[TopicName, CommittedOffset] = {}
    awaited: list[_TxnOffsetCommitPartition] = []
    topics: list[_TxnOffsetCommitTopic] = []
    for topic in request.topics:
        told = _TxnOffsetCommitTopic(name=topic.name, partitions=[])
        topics.append(told)
        for partition in topic.partitions:
            await session.turns.pause(LOOK_UP_UNITS)
            answer = _TxnOffsetCommitPartition(partition_index=partition.partition_index)
            told.partitions.append(answer)
            try:
                part = await part_of(session, request.group_id, topic.name, partition.partition_index)
            except WeirError as refused:
                answer.error_code = code_of(refused)
                continue
            answer.error_code = _flaw(partition)
            if answer.error_code == Code.NONE:
                awaited.append(answer)
                positions[part] = CommittedOffset(
                    partition.committed_offset,
                    max(-1, partition.committed_leader_epoch),
                    partition.committed_metadata or "",
                )
    if positions:
        code = await _commit(session, request, version, positions)
        for answer in awaited:
            answer.error_code = code
    return m.TxnOffsetCommitResponse(topics=topics)


def _flaw(partition: m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition) -> int:
    """Validate the offset now, so that it cannot fail when the transaction commits."""
    if len((partition.committed_metadata or "").encode()) > _MAX_METADATA_BYTES:
        return Code.OFFSET_METADATA_TOO_LARGE
    return Code.NONE


async def _commit(
    session: Session, request: m.TxnOffsetCommitRequest, version: int, positions: dict[TopicName, CommittedOffset]
) -> int:
    joins = version >= _JOINS_SINCE
    try:
        groups = groups_of(session)
        check = await groups.check_member(
            request.group_id,
            request.member_id,
            request.generation_id_or_member_epoch,
            request.group_instance_id,
        )
        group = await groups.kept(request.group_id)
    except WeirError as failure:
        return group_code(failure)
    who = identity(request.producer_id, request.producer_epoch)
    try:
        await transactions_of(session).commit_offsets(
            request.transactional_id, who, group, positions, joins=joins, check=check
        )
    except WeirError as failure:
        return transaction_code(
            failure, fenced=Code.INVALID_PRODUCER_EPOCH, abortable=version >= _TXN_OFFSET_COMMIT_ABORTABLE_SINCE
        )
    return Code.NONE


_EPOCH_SINCE = 5


@handler(ApiKey.END_TXN, versions=(0, 5))
async def end_txn(session: Session, request: m.EndTxnRequest, version: int) -> m.EndTxnResponse:
    transactions, name = transactions_of(session), request.transactional_id
    who = identity(request.producer_id, request.producer_epoch)
    try:
        if version >= _EPOCH_SINCE:
            found = await transactions.end_epoch(name, who, commit=request.committed)
            return m.EndTxnResponse(producer_id=found.producer_id, producer_epoch=found.epoch)
        await transactions.end(name, who, commit=request.committed)
    except WeirError as failure:
        code = transaction_code(failure, fenced=fenced_code(version, _FENCED_SINCE))
        return m.EndTxnResponse(error_code=code)
    return m.EndTxnResponse(error_code=Code.NONE)


_Told = m.DescribeTransactionsResponse.TransactionState
_DescribeTransactionsTopic = m.DescribeTransactionsResponse.TopicData


@handler(ApiKey.DESCRIBE_TRANSACTIONS, versions=(0, 0))
async def describe_transactions(
    session: Session, request: m.DescribeTransactionsRequest, version: int
) -> m.DescribeTransactionsResponse:
    return m.DescribeTransactionsResponse(
        transaction_states=[
            await _describe_transactions_describe(session, name)
            for name in dict.fromkeys(request.transactional_ids)
        ]
    )


async def _describe_transactions_describe(session: Session, name: str) -> _Told:
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


def _topics(session: Session, parts: tuple[TopicName, ...]) -> list[_DescribeTransactionsTopic]:
    """The topics that the client may see, under their Kafka names."""
    catalog, guard = session.services.catalog, session.services.guard
    found: dict[TopicName, _DescribeTransactionsTopic] = {}
    for part in parts:
        try:
            guard.check(session.role, part, None)
            topic = found.setdefault(
                part.base, _DescribeTransactionsTopic(topic=catalog.name_of(part.base), partitions=[])
            )
        except (NotAuthorisedError, TopicNotFoundError):
            continue
        topic.partitions.append(catalog.index_of(part))
    return list(found.values())


_STATES = {state.value: state for state in TransactionState}
_ListTransactionsTold = m.ListTransactionsResponse.TransactionState


@handler(ApiKey.LIST_TRANSACTIONS, versions=(0, 2))
async def list_transactions(
    session: Session, request: m.ListTransactionsRequest, version: int
) -> m.ListTransactionsResponse:
    try:
        transactions = transactions_of(session)
        matches = id_matcher(request.transactional_id_pattern)
        found = await transactions.all()
    except NotAllowedError:
        return m.ListTransactionsResponse(error_code=Code.INVALID_REGULAR_EXPRESSION)
    except WeirError as failure:
        return m.ListTransactionsResponse(error_code=transaction_code(failure))
    now_ms = session.clock.wall_ms()
    return m.ListTransactionsResponse(
        unknown_state_filters=[name for name in request.state_filters if name not in _STATES],
        transaction_states=[
            _ListTransactionsTold(
                transactional_id=one.id, producer_id=one.producer_id, transaction_state=one.state.value
            )
            for one in found
            if _wanted(one, request, now_ms) and matches(one.id)
        ],
    )


def _wanted(one: TransactionInfo, request: m.ListTransactionsRequest, now_ms: int) -> bool:
    if request.state_filters and one.state.value not in request.state_filters:
        return False
    if request.producer_id_filters and one.producer_id not in request.producer_id_filters:
        return False
    return request.duration_filter < 0 or (
        one.started_ms >= 0 and now_ms - one.started_ms > request.duration_filter
    )
