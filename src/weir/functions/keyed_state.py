"""The state of all keys of a function: in memory, and in a topic that keeps the latest of each."""

from collections.abc import Iterable, Mapping

from weir.client.kafka.admin import create_topic
from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.offsets import ends, starts
from weir.functions.reading import read_all
from weir.wire.kafka.records_build import Record


class KeyedState:
    """Changes are stored by whoever commits them (`records`), and hold from then on (`hold`)."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}
        self.bytes = 0

    def load(self, cluster: Cluster, topic: str) -> None:
        """All that is committed. The topic is made if there is none."""
        create_topic(cluster, topic, {"cleanup.policy": "compact"})
        partitions = cluster.partitions([topic])
        records = read_all(cluster.settings, partitions, starts(cluster, partitions), ends(cluster, partitions))
        for record in records:
            value = None if record.value is None else bytes(record.value)
            self.hold({b"" if record.key is None else bytes(record.key)[1:]: value})

    def records(
        self, topic: str, changed: Mapping[bytes, bytes | None], now_ms: int
    ) -> Iterable[tuple[Partition, Record]]:
        """As they are stored; keys behind a byte, since an empty one is a key too."""
        return [(Partition(topic, 0), Record(0, now_ms, b"k" + key, value)) for key, value in changed.items()]

    def hold(self, changed: Mapping[bytes, bytes | None]) -> None:
        for key, value in changed.items():
            before = self.values.pop(key, None)
            if before is not None:
                self.bytes -= len(key) + len(before)
            if value is not None:
                self.values[key] = value
                self.bytes += len(key) + len(value)
