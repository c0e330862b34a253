"""Topics of another Pulsar cluster, or another Weir: keys, values, properties and times as they are there.

A subscription there holds back what was not carried yet; the position that counts is kept here, with the messages.

Topics into another Pulsar cluster, or another Weir.

Each partition has a producer with a name of its own, and offsets are its sequence ids: what the cluster there has
already is left out when the sink begins, and refused by it where its namespace has deduplication.

How another Pulsar cluster, or another Weir, is reached: with Pulsar's own client.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from weir.client.kafka.cluster import Partition
from weir.client.schemas import kafka_name
from weir.connect.connectors.base import Sink, Source, now_ms
from weir.connect.options import reveal
from weir.connect.task import Job, Message
from weir.connect.writer import ensure_topic
from weir.model.diagnosis import install_command
from weir.model.errors import ConfigError, ConnectorError
from weir.model.topics import TopicName

_TIMEOUT_S = 30


@contextmanager
def one_sentence(job: Job) -> Iterator[None]:
    """Errors of Pulsar's client, which say little, as one of Weir's."""
    try:
        yield
    except Exception as failure:
        if type(failure).__module__.partition(".")[0] not in ("pulsar", "_pulsar"):
            raise
        said = f"{job.option('service_url')}: {failure}"
        raise ConnectorError(said, hint="check that the address is right and that the server runs") from failure


def other_pulsar(job: Job) -> Any:
    try:
        import pulsar
    except ImportError:
        raise ConfigError(
            "Pulsar needs its client", hint=f"install it with {install_command('connect')}"
        ) from None
    token = reveal(job.option("token"))
    more = {} if job.option("ca") is None else {"tls_trust_certs_file_path": job.option("ca")}
    return pulsar.Client(
        job.option("service_url"),
        authentication=None if token is None else pulsar.AuthenticationToken(token),
        operation_timeout_seconds=_TIMEOUT_S,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        **more,
    )


class PulsarSink(Sink):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._client: Any = None
        self._producers: dict[Partition, Any] = {}

    def open(self) -> None:
        self._client = other_pulsar(self.job)
        super().open()

    def close(self) -> None:
        self._producers.clear()
        if self._client is not None:
            with suppress(Exception):
                self._client.close()
            self._client = None
        super().close()

    def _producer(self, partition: Partition) -> Any:
        if partition not in self._producers:
            local = partition.topic.rpartition("..")[2]
            self._producers[partition] = self._client.create_producer(
                f"{self.job.option('prefix')}{local}",
                # Sequence ids are offsets: those of a topic that was created again begin anew.
                producer_name=f"weir-connect-{self.job.id}-{partition}{self._which(partition)}",
                batching_enabled=False,  # of a batch, deduplication would know the first sequence id alone
                block_if_queue_full=True,
            )
        return self._producers[partition]

    def _which(self, partition: Partition) -> str:
        found = self.inlet.ids.get(partition.topic)
        return f"-{found}" if found else ""

    def step(self) -> int:
        with one_sentence(self.job):
            return self._step()

    def _step(self) -> int:
        piece = self.take(self.job.option("batch"))
        if piece is None:
            return 0
        producer = self._producer(piece.partition)
        last = producer.last_sequence_id()
        failed: list[Any] = []

        def stored(result: Any, _id: Any) -> None:
            import pulsar

            if result != pulsar.Result.Ok:
                failed.append(result)

        for offset, message in piece.messages:
            if offset > last:
                producer.send_async(bytes(message.value or b""), stored, **_about(offset, message))
        producer.flush()
        if failed:
            raise ConnectorError(
                f"{piece.partition}: the other cluster refused {len(failed)} messages: {failed[0]}"
            )
        self.done(piece)
        return max(1, len(piece.messages))


def _about(offset: int, message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {"sequence_id": offset}
    if message.timestamp > 0:
        found["event_timestamp"] = message.timestamp
    if message.key is not None:
        found["partition_key"] = bytes(message.key).decode(errors="replace")
    if message.headers:
        found["properties"] = {
            name.decode(errors="replace"): bytes(value or b"").decode(errors="replace")
            for name, value in message.headers
        }
    return found


_FIRST_WAIT_MS, _NEXT_WAIT_MS = 100, 5
#: How often it is looked for partitions that are new.
_LOOK_S = 10.0


def _place(message_id: Any) -> list[int]:
    return [message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()]


#: Before a topic's name in the positions: the source has begun to read it.
_BEGUN = "begun:"


class PulsarSource(Source):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._client: Any = None
        self._consumers: dict[str, Any] = {}
        self._looked_s = 0.0

    def open(self) -> None:
        super().open()
        self._client = other_pulsar(self.job)
        with one_sentence(self.job):
            self._look(earliest=self.job.option("start") == "earliest")

    def _look(self, *, earliest: bool) -> None:
        """Subscribe to all partitions that there are; some may have come since it was last looked."""
        import pulsar

        self._looked_s = time.monotonic()
        begun = [key.removeprefix(_BEGUN) for key in self.positions if key.startswith(_BEGUN)]
        for topic in self.job.option("topics"):
            parts = list(self._client.get_topic_partitions(topic))
            if self.job.definition.topics:
                ensure_topic(self.outlet.cluster, self.target(topic), len(parts))
            else:
                self.outlet.ensure(self.target(topic), len(parts))
            for part in parts:
                if part in self._consumers:
                    continue
                if not earliest and topic not in begun:
                    self._subscribe(part, pulsar.InitialPosition.Latest).close()
                # The client subscribes again by itself if the topic is deleted and created again: nothing of the
                # new topic is left out.
                consumer = self._subscribe(part, pulsar.InitialPosition.Earliest)
                if part in self.positions:
                    # What was written here and not acknowledged there comes again, and is left out.
                    ledger, entry, _ = self.positions[part]
                    consumer.seek(pulsar.MessageId(-1, ledger, entry, -1))
                self._consumers[part] = consumer
        new = [topic for topic in self.job.option("topics") if topic not in begun]
        if new:
            self.send([], {f"{_BEGUN}{topic}": True for topic in new})

    def _subscribe(self, part: str, first: Any) -> Any:
        import pulsar

        return self._client.subscribe(
            part,
            f"weir-{self.job.group}",
            consumer_type=pulsar.ConsumerType.Exclusive,
            initial_position=first,
        )

    def close(self) -> None:
        self._consumers.clear()
        if self._client is not None:
            with suppress(Exception):
                self._client.close()
            self._client = None
        super().close()

    def target(self, topic: str) -> str:
        if self.job.definition.topics:
            return kafka_name(self.job.definition.topic)
        local = f"{self.job.option('prefix')}{TopicName.parse(topic).local}"
        return kafka_name(TopicName.parse(f"{self.job.definition.name.namespace}/{local}"))

    def step(self) -> int:
        with one_sentence(self.job):
            return self._step()

    def _step(self) -> int:
        carried = 0
        if time.monotonic() - self._looked_s > _LOOK_S:
            self._look(earliest=True)
        for part, consumer in self._consumers.items():
            carried += self._carry(part, consumer)
        return carried

    def _carry(self, part: str, consumer: Any) -> int:
        import pulsar

        messages: list[Message] = []
        last, wait_ms = None, _FIRST_WAIT_MS
        seen = self.positions.get(part)
        whole = TopicName.parse(part)
        while len(messages) < self.job.option("batch"):
            try:
                found = consumer.receive(timeout_millis=wait_ms)
            except pulsar.Timeout:
                break
            wait_ms = _NEXT_WAIT_MS
            place = _place(found.message_id())
            if seen is not None and place <= seen:
                consumer.acknowledge_cumulative(found)
                continue
            seen, last = place, found
            messages.append(self._message(found, whole))
        if last is None:
            return 0
        self.send(messages, {part: seen})
        consumer.acknowledge_cumulative(last)
        self.status.position = f"{whole.local} at {':'.join(map(str, seen or ()))}"
        return len(messages)

    def _message(self, found: Any, part: TopicName) -> Message:
        key = found.partition_key()
        moment = found.event_timestamp() or found.publish_timestamp() or now_ms()
        headers = tuple((name.encode(), value.encode()) for name, value in found.properties().items())
        index = 0 if part.partition is None else part.partition
        topic = self.target(str(part.base))
        return Message(topic, key.encode() if key else None, found.data(), moment, headers, index)
