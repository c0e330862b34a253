"""Which partition of a topic a message goes to: by its key as Kafka's clients and the sink of Spark do it."""

from weir.client.kafka.cluster import Cluster, Partition

_SEED, _MIX, _MASK = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The hash by which Kafka's own clients spread keys."""
    size = len(data)
    found = (_SEED ^ size) & _MASK
    for at in range(0, size & ~3, 4):
        word = (int.from_bytes(data[at : at + 4], "little") * _MIX) & _MASK
        word ^= word >> 24
        found = ((found * _MIX) & _MASK) ^ ((word * _MIX) & _MASK)
    if size & 3:
        found = ((found ^ int.from_bytes(data[size & ~3 :], "little")) * _MIX) & _MASK
    found ^= found >> 13
    found = (found * _MIX) & _MASK
    return found ^ (found >> 15)


class Routes:
    """Partitions of the topics that a function sends to; those without a key take turns by batches."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._counts: dict[str, int] = {}
        self._turn = 0

    def next_turn(self) -> None:
        self._turn += 1

    def look_anew(self) -> None:
        """Topics may have got more partitions."""
        self._counts.clear()

    def of(self, topic: str, key: bytes | None) -> Partition:
        """A topic that is not there is made."""
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = len(self._cluster.partitions([topic], create=True))
        if count == 1:
            return Partition(topic, 0)
        return Partition(topic, (murmur2(key) & 0x7FFFFFFF if key is not None else self._turn) % count)
