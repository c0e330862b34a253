"""Topics into another Pulsar cluster, or another Weir.

Each partition has a producer with a name of its own, and offsets are its sequence ids: what the cluster there has
already is left out when the sink begins, and refused by it where its namespace has deduplication.
"""

from contextlib import suppress
from typing import Any

from weir.client.kafka.cluster import Partition
from weir.connect.other_pulsar import one_sentence, other_pulsar
from weir.connect.sinks.base import Sink
from weir.connect.task import Job, Message
from weir.model.errors import ConnectorError


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
