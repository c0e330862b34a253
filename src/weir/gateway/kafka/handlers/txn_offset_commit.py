"""TxnOffsetCommit: where a group will be if the transaction commits. Since version 5 it joins it by that."""

from weir.broker.api import CommittedOffset
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code, code_of
from weir.gateway.kafka.grouping import group_code, groups_of, part_of
from weir.gateway.kafka.registry import handler
from weir.gateway.kafka.transacting import identity, transaction_code, transactions_of
from weir.model.errors import WeirError
from weir.model.topics import TopicName
from weir.runtime.turns import LOOK_UP_UNITS
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_Topic = m.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_Partition = m.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition
_MAX_METADATA_BYTES = 4096
_ABORTABLE_SINCE = 4
_JOINS_SINCE = 5


@handler(ApiKey.TXN_OFFSET_COMMIT, versions=(0, 5))
async def txn_offset_commit(
    session: Session, request: m.TxnOffsetCommitRequest, version: int
) -> m.TxnOffsetCommitResponse:
    positions: dict[TopicName, CommittedOffset] = {}
    awaited: list[_Partition] = []
    topics: list[_Topic] = []
    for topic in request.topics:
        told = _Topic(name=topic.name, partitions=[])
        topics.append(told)
        for partition in topic.partitions:
            await session.turns.pause(LOOK_UP_UNITS)
            answer = _Partition(partition_index=partition.partition_index)
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
    """What can be told now must not come up when the transaction is decided."""
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
        return transaction_code(failure, fenced=Code.INVALID_PRODUCER_EPOCH, abortable=version >= _ABORTABLE_SINCE)
    return Code.NONE
