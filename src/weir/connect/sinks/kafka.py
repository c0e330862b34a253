"""Topics into another Kafka cluster, or another Weir, exactly once: positions are kept there, with messages."""

from collections.abc import Mapping

from weir.client.kafka.cluster import Partition
from weir.connect.other_kafka import other_kafka
from weir.connect.outlet import TOPIC_ID, Outlet
from weir.connect.sinks.base import Sink
from weir.connect.task import Job, Message


def positions_there(job: Job) -> str:
    """The topic of its positions in the other cluster, to which others may write with sinks of the same name."""
    return f"connect-{job.definition.name.local}-{job.id}-positions"


class KafkaSink(Sink):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        name = f"connect-{job.definition.name.local}"
        self._outlet = Outlet(other_kafka(job), f"weir-{name}-{job.id}", positions_there(job))
        self._ids: dict[str, str] = {}

    def kept(self) -> dict[Partition, int]:
        found = {}
        for place, offset in self._outlet.open().items():
            if place.startswith(TOPIC_ID):
                self._ids[place.removeprefix(TOPIC_ID)] = offset
                continue
            topic, _, index = place.rpartition("-")
            found[Partition(topic, int(index))] = int(offset)
        for topic in self._names:
            self._outlet.ensure(self.target(topic), len(self.inlet.cluster.partitions([topic])))
        return found

    def kept_ids(self) -> dict[str, str]:
        return self._ids

    def keep_ids(self, ids: Mapping[str, str]) -> None:
        self._outlet.write([], {f"{TOPIC_ID}{topic}": found for topic, found in ids.items()})

    def close(self) -> None:
        self._outlet.close()
        super().close()

    def target(self, topic: str) -> str:
        return f"{self.job.option('prefix')}{topic}"

    def step(self) -> int:
        piece = self.take(self.job.option("batch"))
        if piece is None:
            return 0
        there = self.target(piece.partition.topic)
        self._outlet.ensure(there, piece.partition.index + 1)
        messages = [
            Message(there, one.key, one.value, one.timestamp, one.headers, piece.partition.index)
            for _, one in piece.messages
        ]
        self._outlet.write(messages, {str(piece.partition): piece.next_offset})
        self.done(piece)
        return max(1, len(messages))
