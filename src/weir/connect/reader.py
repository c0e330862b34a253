"""Messages of a partition, read from an offset on: those that are committed, and nothing that was aborted."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.fetch import EARLIEST, LATEST, Fetched, Fetcher, list_offsets
from weir.client.kafka.groups import commit, committed, described, is_of
from weir.client.schemas import kafka_name
from weir.connect.task import Job, Message
from weir.model.errors import ConnectorError, OffsetTrimmedError, TopicNotFoundError, WeirError
from weir.wire.kafka.record_batch import parse_header, split_batches
from weir.wire.kafka.records import iter_records

log = logging.getLogger(__name__)

_FETCH_BYTES = 4 << 20
_AGAIN = "remove the connector and add it again, to begin at the start; a sink of files with another path"


@dataclass(frozen=True, slots=True)
class Piece:
    """What one fetch of a partition gave: messages with their offsets, and where the next one begins."""

    partition: Partition
    messages: Sequence[tuple[int, Message]]
    next_offset: int
    #: Where the partition ended then.
    end_offset: int


def committed_batches(fetched: Fetched) -> Iterator[tuple[int, int, memoryview | None]]:
    """Of each batch its base offset, the offset after it, and its bytes if it counts: no marker, not aborted."""
    aborted = sorted(fetched.aborted, key=lambda one: one[1])
    dead: set[int] = set()
    for batch in split_batches(fetched.records):
        header = parse_header(batch)
        after = header.base_offset + header.count
        while aborted and aborted[0][1] < after:
            dead.add(aborted.pop(0)[0])
        counts = not header.control and not (header.transactional and header.producer_id in dead)
        if header.control:
            dead.discard(header.producer_id)
        yield header.base_offset, after, batch if counts else None


def read_piece(
    cluster: Cluster, partition: Partition, offset: int, max_bytes: int = _FETCH_BYTES, *, topic_id: str = ""
) -> Piece:
    """What the partition has from this offset on, now or in half a second. OffsetTrimmedError if it is gone;
    TopicNotFoundError if the topic with this id is."""
    fetcher = Fetcher(cluster, partition, topic_id=topic_id)
    fetcher.ask(offset, max_bytes)
    fetched = fetcher.take()
    messages: list[tuple[int, Message]] = []
    at = offset
    for base, after, batch in committed_batches(fetched):
        at = max(at, after)
        if batch is None:
            continue
        for record in iter_records(batch):
            place = base + record.offset_delta
            if place >= offset:
                key, value, headers = record.key, record.value, tuple(record.headers)
                found = Message(partition.topic, key, value, record.timestamp, headers, partition.index)
                messages.append((place, found))
    return Piece(partition, messages, at, fetched.stable_offset)


class Pieces:
    """Pieces of as many messages as are wanted. A fetch gives more: the rest waits, of one partition at a time, so
    that nothing is fetched and taken apart again for each of them."""

    def __init__(self, cluster: Cluster, id_of: Callable[[str], str] = lambda topic: "") -> None:
        """`id_of`: which topic of its name is read."""
        self._cluster = cluster
        self._id_of = id_of
        self._rest: Piece | None = None
        self._rest_at = 0

    def of(self, waiting: Sequence[Partition], turn: int) -> Partition:
        """Whose turn it is: what was begun is read to its end first."""
        rest = self._rest
        return waiting[turn % len(waiting)] if rest is None or rest.partition not in waiting else rest.partition

    def read(self, partition: Partition, offset: int, most: int | None) -> Piece:
        """From this offset on, up to so many messages."""
        found, self._rest = self._rest, None
        if found is None or (found.partition, self._rest_at) != (partition, offset):
            found = read_piece(self._cluster, partition, offset, topic_id=self._id_of(partition.topic))
        if most is None or len(found.messages) <= most:
            return found
        taken, self._rest_at = found.messages[:most], found.messages[most - 1][0] + 1
        self._rest = replace(found, messages=found.messages[most:])
        return replace(found, messages=taken, next_offset=self._rest_at)


def check_ends(positions: "dict[Partition, int]", ends: "dict[Partition, int]") -> None:
    """ConnectorError if a partition ends before what was carried of it: it would be waited for in silence, and
    what comes first be missed."""
    for partition, at in positions.items():
        if ends.get(partition, at) < at:
            raise ConnectorError(
                f"{partition} ends at {ends[partition]}, and {at} of it were carried: it was made again",
                hint=_AGAIN,
            )


def check_same(known: Mapping[str, str], now: Mapping[str, str]) -> None:
    """ConnectorError if a topic is another one than that of which positions are known: they say nothing of it, and
    what comes first would be missed."""
    for topic, before in known.items():
        if before and now.get(topic) and not now[topic].startswith(before):
            raise ConnectorError(f"{topic} was made again: positions are of the one before", hint=_AGAIN)


class Inlet:
    """The topics of a sink, from its positions on, one partition after another."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._topics = [kafka_name(topic) for topic in job.definition.topics]
        self.cluster = Cluster(job.place.kafka)
        #: The next offset to be read of each partition.
        self.positions: dict[Partition, int] = {}
        #: Where each partition ended when it was last looked at.
        self.ends: dict[Partition, int] = {}
        self._turn = 0
        self._pieces = Pieces(self.cluster, lambda topic: self.ids.get(topic, ""))
        #: What the group was last told.
        self._told: dict[Partition, int] = {}
        #: Which topics these are: of others of the same names the positions would say nothing.
        self.ids: dict[str, str] = {}
        #: Topics whose positions are of a deleted topic of the same name.
        self._stale: set[str] = set()

    def open(
        self,
        kept: "dict[Partition, int] | None" = None,
        ids: "Mapping[str, str] | None" = None,
        begun: "Mapping[str, str] | None" = None,
    ) -> None:
        """Begin where the group is, or beyond it where what was written says so; else at the start. `ids`: of the
        topics that `kept` is about, as far as it is known. `begun`: topics, with their ids, that the sink has
        begun to read; one that was created again is read from its first message, whatever `start` says."""
        partitions = self.cluster.partitions(self._topics)
        self.ids = dict(self.cluster.topic_ids)
        check_same(ids or {}, self.ids)
        group = self._committed(partitions)
        known = {one: max(group.get(one, -1), (kept or {}).get(one, -1)) for one in partitions}
        topics = {one.topic for one, offset in known.items() if offset >= 0} | (begun or {}).keys() | self._stale
        first = EARLIEST if self._job.option("start") == "earliest" else LATEST
        new = [one for one, offset in known.items() if offset < 0]
        starts = {one: EARLIEST if one.topic in topics else first for one in new}
        for topic in sorted({one.topic for one in new} & (self._stale | (begun or {}).keys())):
            if topic in self._stale or (begun or {}).get(topic) != self.ids.get(topic):
                log.warning("%s was deleted and created again; the sink reads it from its start", topic)
        began = list_offsets(self.cluster, starts)
        self.positions = {one: began.get(one, offset) for one, offset in known.items()}
        # The group holds back what was not read yet, from its first commit on.
        self.commit(self.positions)

    def _committed(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Positions of the group, without those in a deleted topic whose name another one has now."""
        told = described(self.cluster, self._job.group, partitions)
        self._stale = {
            one.topic for one, (_, said) in told.items() if not is_of(said, self.ids.get(one.topic, ""))
        }
        return {one: offset for one, (offset, _) in told.items() if one.topic not in self._stale}

    def close(self) -> None:
        self.cluster.close()

    def commit(self, positions: "dict[Partition, int]") -> None:
        """Everything before these offsets is done, for good."""
        commit(self.cluster, self._job.group, positions, ids=self.ids)
        self._told |= positions

    def check_alone(self, partition: Partition) -> None:
        """ConnectorError if another has moved the group: a runner that was frozen for longer than its lease, and
        goes on beside the one that took its place."""
        now = committed(self.cluster, self._job.group, [partition]).get(partition, -1)
        if now > self._told.get(partition, -1):
            raise ConnectorError(f"another runner has written {partition} up to {now}")

    def lag(self) -> int:
        return sum(max(0, self.ends.get(one, at) - at) for one, at in self.positions.items())

    def look(self) -> None:
        """See where partitions end now, and whether there are more of them."""
        found = self.cluster.partitions(self._topics)
        check_same(self.ids, self.cluster.topic_ids)
        new = [one for one in found if one not in self.positions]
        if new:
            self.positions |= list_offsets(self.cluster, dict.fromkeys(new, EARLIEST))
        self.ends = list_offsets(self.cluster, dict.fromkeys(found, LATEST))
        check_ends(self.positions, self.ends)

    def take(self, most: int | None = None) -> Piece | None:
        """The next piece of a partition that has more, in turn, of up to so many messages; None if there is none.
        It does not move the position: `advance` does."""
        self.look()
        waiting = [one for one, at in sorted(self.positions.items()) if self.ends.get(one, 0) > at]
        if not waiting:
            return None
        self._turn += 1
        chosen = self._pieces.of(waiting, self._turn)
        try:
            return self._pieces.read(chosen, self.positions[chosen], most)
        except OffsetTrimmedError:
            first = list_offsets(self.cluster, {chosen: EARLIEST})[chosen]
            if first <= self.positions[chosen]:
                raise
            self.positions[chosen] = first  # what retention has taken is not there to be carried
            return self._pieces.read(chosen, first, most)

    def advance(self, piece: Piece) -> None:
        if piece.next_offset <= self.positions[piece.partition]:
            raise ConnectorError(f"{piece.partition} gave nothing at {self.positions[piece.partition]}")
        self.positions[piece.partition] = piece.next_offset


def forget_group(job: Job) -> None:
    """The subscription of a sink that is no more."""
    from weir.wire.kafka import messages as m

    with Cluster(job.place.kafka) as cluster, suppress(TopicNotFoundError, WeirError):
        request = m.DeleteGroupsRequest(groups_names=[job.group])
        cluster.retry(lambda: cluster.group_coordinator(job.group).ask(request, m.DeleteGroupsResponse))
