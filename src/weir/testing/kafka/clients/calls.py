"""Kafka's requests as simulated clients make them: one function each, values in, values out, refusals raised."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from weir.model.batch import Stamp
from weir.model.messages import DELIVER_AT
from weir.testing.kafka.clients.client import Link, check_code
from weir.testing.world.clock import EPOCH_S
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.record_batch import NO_STAMP, TRANSACTIONAL, BatchHeader, parse_header, split_batches
from weir.wire.kafka.records import Record, build_batch, iter_records

TOPIC_TIMEOUT_MS = 5_000
#: Coordinators and partitions answer after their waits: rebalances, and ends of transactions that take long.
LONG_S = 6.0
_FIRST_MS = 1_700_000_000_000
EARLIEST, LATEST = -2, -1


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
    """A member of a group in one generation; `members` is told to its leader only: who there is, and what each of
    them says that it has."""

    member_id: str
    generation: int
    leader: str = ""
    members: Mapping[str, Sequence[Part]] = {}
    #: A static member is known by this, too.
    instance: str | None = None


NO_MEMBER = Membership("", -1)


class Found(NamedTuple):
    """A record as a consumer is given it, or a marker."""

    offset: int
    payload: str
    producer: Identity
    transactional: bool
    #: A marker: whether it commits.
    commits: bool | None = None
    key: str | None = None
    #: The leader epoch in which it was written.
    epoch: int = -1


class Fetched(NamedTuple):
    """What one partition answered to a fetch."""

    high: int
    stable: int
    #: Everything, in order; who reads committed has left out what was aborted, as clients have to.
    records: tuple[Found, ...]
    #: Where to go on.
    next: int


# --- topics and records -----------------------------------------------------------------------------------------


async def create_topic(link: Link, name: str, partitions: int, configs: Mapping[str, str]) -> None:
    topic = m.CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[m.CreateTopicsRequest.CreatableTopicConfig(name=key, value=configs[key]) for key in configs],
    )
    request = m.CreateTopicsRequest(topics=[topic], timeout_ms=TOPIC_TIMEOUT_MS)
    answer = await link.call(ApiKey.CREATE_TOPICS, 5, request, timeout_s=LONG_S)
    check_code(answer.topics[0].error_code)


async def delete_records(link: Link, part: Part, offset: int) -> None:
    """Forget everything before the offset."""
    wanted = m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=part.number, offset=offset)
    topic = m.DeleteRecordsRequest.DeleteRecordsTopic(name=part.topic, partitions=[wanted])
    request = m.DeleteRecordsRequest(topics=[topic], timeout_ms=TOPIC_TIMEOUT_MS)
    answer = await link.call(ApiKey.DELETE_RECORDS, 2, request, timeout_s=LONG_S)
    check_code(answer.topics[0].partitions[0].error_code)


async def edge(link: Link, part: Part, which: int) -> int:
    """Where a partition begins (EARLIEST) or ends (LATEST)."""
    wanted = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=part.number, timestamp=which)
    topic = m.ListOffsetsRequest.ListOffsetsTopic(name=part.topic, partitions=[wanted])
    answer = await link.call(ApiKey.LIST_OFFSETS, 5, m.ListOffsetsRequest(topics=[topic]))
    told = answer.topics[0].partitions[0]
    check_code(told.error_code)
    return int(told.offset)


@dataclass(frozen=True, slots=True)
class Item:
    """A record as a producer makes it."""

    payload: str
    key: str | None = None
    #: Nobody shall see it before this moment, in seconds since the world began.
    due_s: float | None = None

    def record(self, at: int) -> Record:
        key = None if self.key is None else self.key.encode()
        headers = []
        if self.due_s is not None:
            headers.append((DELIVER_AT, str(int((EPOCH_S + self.due_s) * 1000) + 1).encode()))
        return Record(at, _FIRST_MS + at, key, self.payload.encode(), headers)


def batch_of(items: Sequence[Item], stamp: Stamp = NO_STAMP, *, transactional: bool = False) -> bytes:
    records = [item.record(at) for at, item in enumerate(items)]
    return build_batch(records, stamp=stamp, attributes=TRANSACTIONAL if transactional else 0)


def produce(
    link: Link, part: Part, batch: bytes, transactional_id: str | None = None, version: int = 9
) -> "asyncio.Future[Any]":
    """Send a batch; `produced` reads its answer."""
    data = m.ProduceRequest.PartitionProduceData(index=part.number, records=batch)
    topic = m.ProduceRequest.TopicProduceData(name=part.topic, partition_data=[data])
    request = m.ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=4_000, topic_data=[topic])
    return link.ask(ApiKey.PRODUCE, version, request)


def produced(answer: Any) -> int:
    """The offset of the batch."""
    told = answer.responses[0].partition_responses[0]
    check_code(told.error_code)
    return int(told.base_offset)


async def fetch(
    link: Link,
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
                records.append(Found(base, "", producer, True, commits, epoch=header.leader_epoch))
            continue
        if header.transactional and header.producer_id in shut:
            continue
        records += [
            _found(header, record) for record in iter_records(batch) if base + record.offset_delta >= offset
        ]
    return Fetched(told.high_watermark, told.last_stable_offset, tuple(records), following)


def _found(header: BatchHeader, record: Record) -> Found:
    key = None if record.key is None else bytes(record.key).decode()
    payload = bytes(record.value or b"").decode()
    producer = Identity(header.producer_id, header.producer_epoch)
    offset = header.base_offset + record.offset_delta
    return Found(offset, payload, producer, header.transactional, key=key, epoch=header.leader_epoch)


# --- transactions -----------------------------------------------------------------------------------------------


async def init_producer(
    link: Link, transactional_id: str | None, timeout_ms: int, expected: Identity | None = None
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


async def add_partitions(link: Link, name: str, who: Identity, parts: Sequence[Part]) -> None:
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


async def add_offsets(link: Link, name: str, who: Identity, group: str) -> None:
    request = m.AddOffsetsToTxnRequest(
        transactional_id=name, producer_id=who.producer_id, producer_epoch=who.epoch, group_id=group
    )
    check_code((await link.call(ApiKey.ADD_OFFSETS_TO_TXN, 3, request, timeout_s=LONG_S)).error_code)


async def commit_in_transaction(
    link: Link,
    name: str,
    who: Identity,
    *,
    group: str,
    member: Membership,
    moved: Mapping[Part, int],
    version: int = 3,
) -> None:
    request = m.TxnOffsetCommitRequest(
        transactional_id=name,
        group_id=group,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        generation_id_or_member_epoch=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance,
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
    answer = await link.call(ApiKey.TXN_OFFSET_COMMIT, version, request, timeout_s=LONG_S)
    for topic in answer.topics:
        for told in topic.partitions:
            check_code(told.error_code)


async def end_transaction(link: Link, name: str, who: Identity, *, commits: bool) -> None:
    request = m.EndTxnRequest(
        transactional_id=name, producer_id=who.producer_id, producer_epoch=who.epoch, committed=commits
    )
    check_code((await link.call(ApiKey.END_TXN, 3, request, timeout_s=LONG_S)).error_code)


async def end_epoch(link: Link, name: str, who: Identity, *, commits: bool, timeout_s: float = LONG_S) -> Identity:
    """The same in version 2: answers with who the producer is from now on."""
    request = m.EndTxnRequest(
        transactional_id=name, producer_id=who.producer_id, producer_epoch=who.epoch, committed=commits
    )
    answer = await link.call(ApiKey.END_TXN, 5, request, timeout_s=timeout_s)
    check_code(answer.error_code)
    return Identity(answer.producer_id, answer.producer_epoch)
