"""Kafka's requests as simulated clients make them: one function each, values in, values out, refusals raised."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from weir.gateway.kafka.errors import Code
from weir.model.batch import Stamp
from weir.testing.kafka_client import KafkaLink, check_code
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey
from weir.wire.kafka.consumer import decode_assignment, encode_assignment, encode_subscription
from weir.wire.kafka.records import NO_STAMP, TRANSACTIONAL, parse_header, split_batches
from weir.wire.kafka.records_build import Record, build_batch
from weir.wire.kafka.records_read import iter_records

TOPIC_TIMEOUT_MS = 5_000
PROTOCOL = "spread"
#: Coordinators and partitions answer after their waits: rebalances, and ends of transactions that take long.
LONG_S = 6.0
_FIRST_MS = 1_700_000_000_000


class Part(NamedTuple):
    """A partition."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


class Identity(NamedTuple):
    """An idempotent or transactional producer."""

    producer_id: int
    epoch: int


class Membership(NamedTuple):
    """A member of a group in one generation; `members` is told to its leader only."""

    member_id: str
    generation: int
    leader: str = ""
    members: tuple[str, ...] = ()


NO_MEMBER = Membership("", -1)


class Found(NamedTuple):
    """A record as a consumer is given it, or a marker."""

    offset: int
    payload: str
    producer: Identity
    transactional: bool
    #: A marker: whether it commits.
    commits: bool | None = None


class Fetched(NamedTuple):
    """What one partition answered to a fetch."""

    high: int
    stable: int
    #: Everything, in order; who reads committed has left out what was aborted, as clients have to.
    records: tuple[Found, ...]
    #: Where to go on.
    next: int


# --- topics and records -----------------------------------------------------------------------------------------


async def create_topic(link: KafkaLink, name: str, partitions: int) -> None:
    topic = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    request = m.CreateTopicsRequest(topics=[topic], timeout_ms=TOPIC_TIMEOUT_MS)
    answer = await link.call(ApiKey.CREATE_TOPICS, 5, request, timeout_s=LONG_S)
    check_code(answer.topics[0].error_code)


def batch_of(payloads: Sequence[str], stamp: Stamp = NO_STAMP, *, transactional: bool = False) -> bytes:
    records = [Record(at, _FIRST_MS + at, None, payload.encode()) for at, payload in enumerate(payloads)]
    return build_batch(records, stamp=stamp, attributes=TRANSACTIONAL if transactional else 0)


def produce(
    link: KafkaLink, part: Part, batch: bytes, transactional_id: str | None = None
) -> "asyncio.Future[Any]":
    """Send a batch; `produced` reads its answer."""
    data = m.ProduceRequest.PartitionProduceData(index=part.number, records=batch)
    topic = m.ProduceRequest.TopicProduceData(name=part.topic, partition_data=[data])
    request = m.ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=4_000, topic_data=[topic])
    return link.ask(ApiKey.PRODUCE, 9, request)


def produced(answer: Any) -> int:
    """The offset of the batch."""
    told = answer.responses[0].partition_responses[0]
    check_code(told.error_code)
    return int(told.base_offset)


async def fetch(
    link: KafkaLink,
    wanted: Mapping[Part, int],
    *,
    committed: bool,
    wait_ms: int = 100,
    max_bytes: int = 100_000,
    raw: bool = False,
) -> dict[Part, Fetched]:
    """Read partitions from offsets on. `raw`: markers and all."""
    request = m.FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=int(committed),
        session_epoch=-1,
        topics=fetch_topics(wanted, max_bytes),
    )
    answer = await link.call(ApiKey.FETCH, 11, request, timeout_s=2.0 + wait_ms / 1000)
    check_code(answer.error_code)
    found = {}
    for topic in answer.responses:
        for told in topic.partitions:
            check_code(told.error_code)
            part = Part(topic.topic, told.partition_index)
            found[part] = fetched(told, wanted[part], committed=committed, raw=raw)
    return found


def fetch_topics(wanted: Mapping[Part, int], max_bytes: int) -> list[m.FetchRequest.FetchTopic]:
    return [
        m.FetchRequest.FetchTopic(
            topic=part.topic,
            partitions=[
                m.FetchRequest.FetchPartition(
                    partition=part.number, fetch_offset=offset, partition_max_bytes=max_bytes
                )
            ],
        )
        for part, offset in wanted.items()
    ]


def fetched(told: m.FetchResponse.PartitionData, offset: int, *, committed: bool, raw: bool = False) -> Fetched:
    """What a partition's answer says to whoever reads from there on."""
    pieces = told.records
    data = b"" if pieces is None else b"".join(pieces) if isinstance(pieces, list) else bytes(pieces)  # type: ignore[arg-type]
    aborted = sorted((each.first_offset, each.producer_id) for each in told.aborted_transactions or ())
    shut: dict[int, None] = {}
    records: list[Found] = []
    following = offset
    for batch in split_batches(data):
        header = parse_header(batch)
        base, producer = header.base_offset, Identity(header.producer_id, header.producer_epoch)
        following = max(following, base + header.count)
        while committed and aborted and aborted[0][0] <= base:
            shut[aborted.pop(0)[1]] = None
        if header.control:
            commits = next(iter_records(batch)).key == b"\x00\x00\x00\x01"
            if not commits:
                shut.pop(header.producer_id, None)
            if raw:
                records.append(Found(base, "", producer, True, commits))
            continue
        if header.transactional and header.producer_id in shut:
            continue
        records += [
            Found(base + record.offset_delta, bytes(record.value or b"").decode(), producer, header.transactional)
            for record in iter_records(batch)
            if base + record.offset_delta >= offset
        ]
    return Fetched(told.high_watermark, told.last_stable_offset, tuple(records), following)


# --- groups -----------------------------------------------------------------------------------------------------


async def join(
    link: KafkaLink, group: str, topics: Sequence[str], member_id: str, *, session_ms: int, rebalance_ms: int
) -> Membership:
    said = encode_subscription(0, m.ConsumerProtocolSubscription(topics=list(topics)))
    request = m.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name=PROTOCOL, metadata=said)],
    )
    answer = await link.call(ApiKey.JOIN_GROUP, 5, request, timeout_s=LONG_S)
    if answer.error_code == Code.MEMBER_ID_REQUIRED:
        request.member_id = answer.member_id
        answer = await link.call(ApiKey.JOIN_GROUP, 5, request, timeout_s=LONG_S)
    check_code(answer.error_code)
    members = tuple(member.member_id for member in answer.members)
    return Membership(answer.member_id, answer.generation_id, answer.leader, members)


async def sync(
    link: KafkaLink, group: str, member: Membership, shares: Mapping[str, Sequence[Part]]
) -> list[Part]:
    """The member's share; its leader brings everyone's."""
    assignments = [
        m.SyncGroupRequest.SyncGroupRequestAssignment(member_id=each, assignment=_assignment(parts))
        for each, parts in shares.items()
    ]
    request = m.SyncGroupRequest(
        group_id=group,
        generation_id=member.generation,
        member_id=member.member_id,
        protocol_type="consumer",
        protocol_name=PROTOCOL,
        assignments=assignments,
    )
    answer = await link.call(ApiKey.SYNC_GROUP, 5, request, timeout_s=LONG_S)
    check_code(answer.error_code)
    if not len(answer.assignment):
        return []
    share = decode_assignment(answer.assignment)
    return [Part(topic.topic, index) for topic in share.assigned_partitions for index in topic.partitions]


def _assignment(parts: Sequence[Part]) -> bytes:
    topics = [
        m.ConsumerProtocolAssignment.TopicPartition(topic=part.topic, partitions=[part.number]) for part in parts
    ]
    return encode_assignment(0, m.ConsumerProtocolAssignment(assigned_partitions=topics))


async def heartbeat(link: KafkaLink, group: str, member: Membership) -> None:
    request = m.HeartbeatRequest(group_id=group, generation_id=member.generation, member_id=member.member_id)
    check_code((await link.call(ApiKey.HEARTBEAT, 3, request)).error_code)


async def leave(link: KafkaLink, group: str, member: Membership) -> None:
    request = m.LeaveGroupRequest(group_id=group, member_id=member.member_id)
    check_code((await link.call(ApiKey.LEAVE_GROUP, 2, request)).error_code)


async def commit(link: KafkaLink, group: str, member: Membership, positions: Mapping[Part, int]) -> None:
    """OK only if all of them are."""
    request = m.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=member.generation,
        member_id=member.member_id,
        topics=[
            m.OffsetCommitRequest.OffsetCommitRequestTopic(
                name=part.topic,
                partitions=[
                    m.OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=part.number, committed_offset=offset
                    )
                ],
            )
            for part, offset in positions.items()
        ],
    )
    answer = await link.call(ApiKey.OFFSET_COMMIT, 8, request, timeout_s=LONG_S)
    for topic in answer.topics:
        for told in topic.partitions:
            check_code(told.error_code)


async def positions(link: KafkaLink, group: str, parts: Sequence[Part]) -> dict[Part, int]:
    """Where the group is; -1 where it has never been. Refused while a transaction is about to move it."""
    request = m.OffsetFetchRequest(
        group_id=group,
        topics=[
            m.OffsetFetchRequest.OffsetFetchRequestTopic(name=part.topic, partition_indexes=[part.number])
            for part in parts
        ],
        require_stable=True,
    )
    answer = await link.call(ApiKey.OFFSET_FETCH, 7, request, timeout_s=LONG_S)
    check_code(answer.error_code)
    found = {}
    for topic in answer.topics:
        for told in topic.partitions:
            check_code(told.error_code)
            found[Part(topic.name, told.partition_index)] = int(told.committed_offset)
    return found


# --- transactions -----------------------------------------------------------------------------------------------


async def init_producer(
    link: KafkaLink, transactional_id: str | None, timeout_ms: int, expected: Identity | None = None
) -> Identity:
    was = expected or Identity(-1, -1)
    request = m.InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=was.producer_id,
        producer_epoch=was.epoch,
    )
    answer = await link.call(ApiKey.INIT_PRODUCER_ID, 4, request, timeout_s=LONG_S)
    check_code(answer.error_code)
    return Identity(answer.producer_id, answer.producer_epoch)


async def add_partitions(link: KafkaLink, name: str, who: Identity, parts: Sequence[Part]) -> None:
    topics = [
        m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=part.topic, partitions=[part.number])
        for part in parts
    ]
    request = m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=who.producer_id,
        v3_and_below_producer_epoch=who.epoch,
        v3_and_below_topics=topics,
    )
    answer = await link.call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request, timeout_s=LONG_S)
    for topic in answer.results_by_topic_v3_and_below:
        for told in topic.results_by_partition:
            check_code(told.partition_error_code)


async def add_offsets(link: KafkaLink, name: str, who: Identity, group: str) -> None:
    request = m.AddOffsetsToTxnRequest(
        transactional_id=name, producer_id=who.producer_id, producer_epoch=who.epoch, group_id=group
    )
    check_code((await link.call(ApiKey.ADD_OFFSETS_TO_TXN, 3, request, timeout_s=LONG_S)).error_code)


async def commit_in_transaction(
    link: KafkaLink, name: str, who: Identity, *, group: str, member: Membership, moved: Mapping[Part, int]
) -> None:
    request = m.TxnOffsetCommitRequest(
        transactional_id=name,
        group_id=group,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        generation_id_or_member_epoch=member.generation,
        member_id=member.member_id,
        topics=[
            m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                name=part.topic,
                partitions=[
                    m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                        partition_index=part.number, committed_offset=offset
                    )
                ],
            )
            for part, offset in moved.items()
        ],
    )
    answer = await link.call(ApiKey.TXN_OFFSET_COMMIT, 3, request, timeout_s=LONG_S)
    for topic in answer.topics:
        for told in topic.partitions:
            check_code(told.error_code)


async def end_transaction(link: KafkaLink, name: str, who: Identity, *, commits: bool) -> None:
    request = m.EndTxnRequest(
        transactional_id=name, producer_id=who.producer_id, producer_epoch=who.epoch, committed=commits
    )
    check_code((await link.call(ApiKey.END_TXN, 3, request, timeout_s=LONG_S)).error_code)
