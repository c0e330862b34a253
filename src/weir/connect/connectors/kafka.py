"""Topics of another Kafka cluster, or another Weir: keys, values, headers, times and partitions stay.

Topics into another Kafka cluster, or another Weir, exactly once: positions are kept there, with messages.

How another Kafka cluster, or another Weir, is reached.
"""

from collections.abc import Mapping
from contextlib import suppress

from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.fetch import EARLIEST, LATEST, list_offsets
from weir.client.kafka.groups import commit
from weir.client.kafka.settings import KafkaSettings, Login, TlsFiles, parse_servers
from weir.client.schemas import kafka_name
from weir.connect.connectors.base import Sink, Source
from weir.connect.options import reveal
from weir.connect.reader import Pieces, check_ends, check_same
from weir.connect.task import Job, Message
from weir.connect.writer import TOPIC_ID, Outlet, ensure_topic
from weir.model.errors import NotAuthorisedError, OffsetTrimmedError
from weir.model.topics import TopicName

#: The runner tries again, and says meanwhile what is wrong.
_PATIENCE_S = 15.0


def other_kafka(job: Job) -> KafkaSettings:
    token, password = reveal(job.option("token")), reveal(job.option("password"))
    login = None
    if token is not None or password is not None:
        login = Login(job.option("username") or "token", token or password or "")
    tls = None
    if job.option("tls") or job.option("ca") or job.option("certificate"):
        tls = TlsFiles(job.option("ca"), job.option("certificate"), job.option("key"))
    servers = parse_servers(job.option("bootstrap_servers"))
    return KafkaSettings(servers, "weir-connect", tls, login, retry_for_s=_PATIENCE_S)


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


class KafkaSource(Source):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._other = Cluster(other_kafka(job))
        self._topics: tuple[str, ...] = job.option("topics")
        self._at: dict[Partition, int] = {}
        self._turn = 0
        #: Which topic of its name is read, as the positions say.
        self._pieces = Pieces(self._other, lambda topic: self.positions.get(f"{TOPIC_ID}{topic}", ""))

    def open(self) -> None:
        super().open()
        self._at.clear()
        self._look()

    def close(self) -> None:
        self._other.close()
        super().close()

    def target(self, topic: str) -> str:
        """What a topic of theirs is called here: in the connector's namespace, or the one topic that it names."""
        if self.job.definition.topics:
            return kafka_name(self.job.definition.topic)
        local = f"{self.job.option('prefix')}{topic}"
        return kafka_name(TopicName.parse(f"{self.job.definition.name.namespace}/{local}"))

    def _look(self) -> dict[Partition, int]:
        """Where their partitions end; those that are new begin where they should."""
        found = self._other.partitions(list(self._topics))
        self._check_ids()
        new = [one for one in found if one not in self._at]
        if new:
            for topic in {one.topic for one in new}:
                self._ensure(topic, sum(one.topic == topic for one in found))
            start = EARLIEST if self.job.option("start") == "earliest" or self._at else LATEST
            began = list_offsets(self._other, dict.fromkeys(new, start))
            self._at |= {one: self.positions.get(str(one), began[one]) for one in new}
            if start == LATEST:  # what comes while nobody runs it is behind this, though nothing was carried yet
                self.send([], {str(one): at for one, at in self._at.items() if str(one) not in self.positions})
        ends = list_offsets(self._other, dict.fromkeys(found, LATEST))
        check_ends(self._at, ends)
        return ends

    def _check_ids(self) -> None:
        """Positions are those of topics, and not of others that have got their names."""
        known = {topic: self.positions.get(f"{TOPIC_ID}{topic}", "") for topic in self._topics}
        now = self._other.topic_ids
        check_same(known, now)
        new = {f"{TOPIC_ID}{topic}": now[topic] for topic in self._topics if not known[topic] and now.get(topic)}
        if new:
            self.send([], new)

    def _ensure(self, topic: str, partitions: int) -> None:
        if self.job.definition.topics:
            ensure_topic(self.outlet.cluster, self.target(topic), partitions)
        else:
            self.outlet.ensure(self.target(topic), partitions)

    def step(self) -> int:
        ends = self._look()
        waiting = [one for one, at in sorted(self._at.items()) if ends.get(one, 0) > at]
        self.status.lag = sum(max(0, end - self._at.get(one, end)) for one, end in ends.items())
        if not waiting:
            return 0
        self._turn += 1
        chosen = self._pieces.of(waiting, self._turn)
        try:
            piece = self._pieces.read(chosen, self._at[chosen], self.job.option("batch"))
        except OffsetTrimmedError:
            first = list_offsets(self._other, {chosen: EARLIEST})[chosen]
            if first <= self._at[chosen]:
                raise
            self._at[chosen] = first  # gone there, before it was carried
            return 1
        here, at = self.target(chosen.topic), piece.next_offset
        messages = [
            Message(here, one.key, one.value, one.timestamp, one.headers, chosen.index)
            for _, one in piece.messages
        ]
        self.send(messages, {str(chosen): at})
        self._at[chosen] = at
        with suppress(NotAuthorisedError):  # so that its lag is seen there, too, if it may
            commit(self._other, self.job.group, {chosen: at})
        self.status.position = f"{chosen} at {at}"
        self.status.lag = sum(max(0, end - self._at.get(one, end)) for one, end in ends.items())
        return max(1, len(messages))
