"""Messages into a Kafka cluster, Weir's own or another, exactly once: their positions go with them.

One transaction writes messages and, into a compacted topic of the connector's own, the position that they bring it
to. Whoever opens the outlet next fences the one before it, has what that left open aborted, and reads the
positions. So a message and its position are both there, or neither, whatever dies.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.connection import check
from weir.client.kafka.fetch import EARLIEST, LATEST, list_offsets
from weir.client.kafka.produce import ProducerId, Sender, add_partitions, end, init_producer
from weir.client.kafka.settings import KafkaSettings
from weir.connect.reader import read_piece
from weir.connect.task import Job, Message
from weir.model.batch import Stamp
from weir.model.errors import ConnectorError, TopicNotFoundError
from weir.model.topics import TopicName
from weir.wire.kafka import messages as m
from weir.wire.kafka.partitioner import partition_of
from weir.wire.kafka.record_batch import TRANSACTIONAL
from weir.wire.kafka.records import Record, build_batch

#: Before a topic's name, in place of a partition: the position is the id of the topic that others are about.
TOPIC_ID = "id:"
_SEQUENCES = 1 << 31
_TOPIC_EXISTS, _UNKNOWN_TOPIC, _ENOUGH_PARTITIONS = 36, 3, 37
#: Of one batch; a broker takes a megabyte by default.
_BATCH_BYTES = 900_000
_TRANSACTION_MS = 60_000
_CREATE_TIMEOUT_MS = 30_000


def positions_topic(job: Job) -> TopicName:
    """The topic that keeps positions of a source, and which topics a sink has begun to read."""
    return TopicName.parse(f"{job.definition.name.namespace}/connect-{job.definition.name.local}-positions")


def ensure_topic(cluster: Cluster, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> int:
    """Make the topic if it is not there; how many partitions it has."""
    try:
        return len(cluster.partitions([topic]))
    except TopicNotFoundError:
        pass
    kind = m.CreateTopicsRequest
    wanted = kind.CreatableTopic(
        name=topic,
        num_partitions=partitions,
        replication_factor=-1,
        configs=[kind.CreatableTopicConfig(name=name, value=value) for name, value in (configs or {}).items()],
    )

    def ask() -> None:
        request = kind(topics=[wanted], timeout_ms=_CREATE_TIMEOUT_MS)
        for one in cluster.any().ask(request, m.CreateTopicsResponse).topics:
            if one.error_code != _TOPIC_EXISTS:
                check(one.error_code, topic, one.error_message)

    cluster.retry(ask)
    return len(cluster.partitions([topic]))


def grow_topic(cluster: Cluster, topic: str, partitions: int) -> int:
    """Give a topic that is there so many partitions at least; how many it has then."""
    kind = m.CreatePartitionsRequest
    wanted = kind.CreatePartitionsTopic(name=topic, count=partitions, assignments=None)

    def ask() -> None:
        request = kind(topics=[wanted], timeout_ms=_CREATE_TIMEOUT_MS, validate_only=False)
        for one in cluster.any().ask(request, m.CreatePartitionsResponse).results:
            if one.error_code != _ENOUGH_PARTITIONS:
                check(one.error_code, topic, one.error_message)

    cluster.retry(ask)
    return len(cluster.partitions([topic]))


def delete_topic(cluster: Cluster, topic: str) -> None:
    """Fine if it is not there."""
    request = m.DeleteTopicsRequest(topic_names=[topic], timeout_ms=_CREATE_TIMEOUT_MS)

    def ask() -> None:
        for one in cluster.any().ask(request, m.DeleteTopicsResponse).responses:
            if one.error_code != _UNKNOWN_TOPIC:
                check(one.error_code, topic, one.error_message)

    cluster.retry(ask)


class Outlet:
    def __init__(self, settings: KafkaSettings, name: str, positions: str) -> None:
        """`name`: the transactional id; `positions`: the topic that keeps them."""
        self.cluster = Cluster(settings)
        self._name = name
        self._home = Partition(positions, 0)
        self._producer: ProducerId | None = None
        self._sender = Sender(self.cluster, transactional_id=name)
        self._sequences: dict[Partition, int] = {}
        self._counts: dict[str, int] = {}
        self._turn = 0

    def open(self) -> dict[str, Any]:
        """Fence whoever had it before; all positions, by their keys."""
        ensure_topic(self.cluster, self._home.topic, 1, {"cleanup.policy": "compact"})
        self._producer = init_producer(self.cluster, self._name, _TRANSACTION_MS)
        self._sequences.clear()
        return self._read()

    def close(self) -> None:
        self.cluster.close()

    def ensure(self, topic: str, partitions: int) -> None:
        """The topic is there, with so many partitions: what has one keeps it."""
        if self._counts.get(topic, 0) < partitions:
            count = ensure_topic(self.cluster, topic, partitions)
            self._counts[topic] = count if count >= partitions else grow_topic(self.cluster, topic, partitions)

    def _read(self) -> dict[str, Any]:
        at = list_offsets(self.cluster, {self._home: EARLIEST})[self._home]
        last = list_offsets(self.cluster, {self._home: LATEST})[self._home]
        found: dict[str, Any] = {}
        while at < last:
            piece = read_piece(self.cluster, self._home, at)
            if piece.next_offset <= at:
                raise ConnectorError(f"{self._home.topic} gave nothing at {at}, though it has {last} offsets")
            at = piece.next_offset
            for offset, message in piece.messages:
                try:
                    key = bytes(message.key or b"").decode()
                    value = None if message.value is None else json.loads(bytes(message.value))
                except (ValueError, RecursionError):
                    raise ConnectorError(
                        f"offset {offset} of topic {self._home.topic} is not a position: something else than this "
                        "connector has written it",
                        hint="take back the grants of other roles to produce to that topic; then remove the "
                        "connector, delete the topic and add the connector again",
                    ) from None
                if value is None:
                    found.pop(key, None)
                else:
                    found[key] = value
        return found

    def write(self, messages: Sequence[Message], positions: Mapping[str, Any]) -> None:
        """All of it, or none. A position that is None is forgotten. What fails ends the outlet: open it again."""
        producer = self._producer
        if producer is None:
            raise ConnectorError("the outlet is not open")
        now_ms = int(time.time() * 1000)
        batches = self._by_partition(messages)
        said = [
            Message(self._home.topic, key.encode(), None if at is None else json.dumps(at).encode(), now_ms)
            for key, at in positions.items()
        ]
        if said:
            batches[self._home] = said
        if not batches:
            return
        # The coordinator may be on the same connection, and answers come in turn.
        add_partitions(self.cluster, self._name, producer, batches)
        # Who leads is looked up before anything is on its way, for the same reason.
        self.cluster.retry(lambda: self.cluster.by_leader(batches))
        parts = {partition: chunks(mine) for partition, mine in batches.items()}
        for turn in range(max(map(len, parts.values()))):
            self._sender.send(
                {
                    partition: self._sealed(partition, mine[turn], producer)
                    for partition, mine in parts.items()
                    if turn < len(mine)
                }
            )
        self._sender.flush()
        end(self.cluster, self._name, producer, commit=True)

    def _by_partition(self, messages: Sequence[Message]) -> dict[Partition, list[Message]]:
        found: dict[Partition, list[Message]] = {}
        self._turn += 1
        for one in messages:
            count = self._counts.get(one.topic)
            if count is None:
                count = self._counts[one.topic] = len(self.cluster.partitions([one.topic], create=True))
            if one.partition is not None and one.partition < count:
                index = one.partition
            elif one.key is not None:
                index = partition_of(bytes(one.key), count)
            else:
                index = self._turn % count  # a batch stays together
            found.setdefault(Partition(one.topic, index), []).append(one)
        return found

    def _sealed(self, partition: Partition, messages: Sequence[Message], producer: ProducerId) -> bytes:
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = (sequence + len(messages)) % _SEQUENCES
        records = [Record(at, one.timestamp, one.key, one.value, one.headers) for at, one in enumerate(messages)]
        return build_batch(records, attributes=TRANSACTIONAL, stamp=Stamp(producer.id, producer.epoch, sequence))


def chunks(messages: Sequence[Message]) -> list[Sequence[Message]]:
    """As batches that a broker takes."""
    found: list[list[Message]] = [[]]
    size = 0
    for one in messages:
        mine = len(one.value or b"") + len(one.key or b"") + 100
        mine += sum(len(name) + len(value or b"") for name, value in one.headers)
        if found[-1] and size + mine > _BATCH_BYTES:
            found.append([])
            size = 0
        found[-1].append(one)
        size += mine
    return list(found)
