"""What was picked, delivered in order by an idempotent producer: sequence numbers are places in the selection.

So whoever goes on after a kill asks where the messages go how far the producer got, and begins there; what was
sent and not answered is there once, however often it is sent. A batch is the same whenever it is made: it ends
where the selection says, not where somebody stopped.

The selection cut into batches by what its messages are, so that a batch is the same whenever it is made.

A replay from its beginning to its end, or from where it was.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.client.kafka.cluster import Cluster, Partition, stored_sequences
from weir.client.kafka.fetch import ends, starts
from weir.client.kafka.produce import Sender, init_producer
from weir.client.replays import all_replays, find_replay, report
from weir.client.schemas import kafka_name, topic_of
from weir.model.batch import Stamp
from weir.model.definitions import Replay, ReplayState, is_selection
from weir.model.errors import OutOfOrderSequenceError, ReplayStateError, WeirError
from weir.spark.options import connection, parse
from weir.spark.records.encoder import Chunk, Splitter, chunks
from weir.spark.records.kernels import Ints
from weir.spark.replay.requests import check_same_topics
from weir.spark.replay.selection import drop_selection, is_picked, selection_topic
from weir.spark.source.planning import Range
from weir.spark.source.reading import read_range
from weir.spark.tables.names import WeirCluster
from weir.spark.values.typed import versions_of
from weir.wire.kafka.compression import compressor
from weir.wire.kafka.record_batch import ADDRESSED, Compression
from weir.wire.pulsar.translation import METADATA

T = TypeVar("T")
_OVER = object()
#: Rows that are taken into memory together end with the one that reaches this.
_MOST_BYTES = 4 * 1024 * 1024


def grouped(batches: Iterator[Any], count: int, most_bytes: int = _MOST_BYTES) -> Iterator[Any]:
    """The same rows, so many at a time; fewer where they are large, of which Arrow could not hold so many."""
    waiting: list[Any] = []
    have = size = 0
    for batch in batches:
        sizes, at = np.cumsum(_sizes(batch)), 0
        while at < batch.num_rows:
            before = int(sizes[at - 1]) if at else 0
            full = int(np.searchsorted(sizes, before + most_bytes - size)) + 1
            end = min(at + count - have, full, batch.num_rows)
            waiting.append(batch.slice(at, end - at))
            have, size = have + end - at, size + int(sizes[end - 1]) - before
            at = end
            if have == count or size >= most_bytes:
                yield _one(waiting)
                waiting, have, size = [], 0, 0
    if waiting:
        yield _one(waiting)


def _sizes(batch: Any) -> Ints:
    """The bytes of each row's key, value and headers."""
    found: Ints = np.zeros(batch.num_rows, np.int64)
    for name in ("key", "value"):
        found += _lengths(batch.column(name))
    headers = batch.column("headers")
    flat = headers.flatten()
    ends = np.asarray(headers.value_lengths().fill_null(0)).cumsum()
    so_far = np.concatenate([[0], np.cumsum(_lengths(flat.field("key")) + _lengths(flat.field("value")))])
    found += np.diff(so_far[ends], prepend=0)
    return found


def _lengths(column: Any) -> Ints:
    found: Ints = np.asarray(pc.fill_null(pc.binary_length(column), 0)).astype(np.int64)
    return found


def runs(rows: Any) -> Iterator[Any]:
    """The same rows, cut where a batch must end: what was written by another version of the schema, or can only be
    opened as it is, cannot be in one batch for Pulsar's consumers."""
    headers = rows.column("headers")
    versions = versions_of(headers).tolist()
    closed = np.flatnonzero(np.asarray(pc.equal(headers.flatten().field("key"), METADATA)))
    ends = np.asarray(headers.value_lengths().fill_null(0)).cumsum()
    for row in np.searchsorted(ends, closed, side="right").tolist():
        versions[row] = (row,)
    first = 0
    for at in range(1, rows.num_rows + 1):
        if at == rows.num_rows or versions[at] != versions[at - 1]:
            yield rows.slice(first, at - first)
            first = at


def in_turns(parts: Iterable[Iterator[T]], most: int) -> Iterator[T]:
    """One thing of each part after the other, of so many parts at a time; others begin when one has ended."""
    waiting = iter(parts)
    begun = list(islice(waiting, most))
    while begun:
        left: list[Iterator[T]] = []
        for part in begun:
            one = next(part, _OVER)
            if one is _OVER:
                left += islice(waiting, 1)
            else:
                left.append(part)
                yield cast("T", one)
        begun = left


def _one(batches: list[Any]) -> Any:
    """As one batch whose buffers begin with its first row."""
    table = pa.Table.from_batches(batches).combine_chunks()
    found = table.to_batches()
    return found[0] if len(found) == 1 else pa.concat_batches(found)


#: How often it is kept how far a replay is, and how many messages may be on their way.
_REPORT_S = 1.0
_WINDOW = 4
#: Partitions that are read and written beside each other: each has a connection, and some megabytes.
_BESIDE = 16
#: Bytes that are fetched ahead, of all partitions and of one at the least.
_FETCH, _MEMORY, _LEAST = "kafka.max.partition.fetch.bytes", 64 * 1024 * 1024, 1024 * 1024
#: How often somebody who delivers the same is let go first.
_MOST_RESTARTS = 20


class Told(Protocol):
    """Whoever watches."""

    def begin(self, total: int, delivered: int) -> None: ...

    def advance(self, messages: int) -> None: ...


class _Nobody:
    def begin(self, total: int, delivered: int) -> None: ...

    def advance(self, messages: int) -> None: ...


@dataclass(frozen=True, slots=True)
class _Sent:
    """A batch of the selection, and the sequence number of its first message."""

    partition: int
    sequence: int
    chunk: Chunk


class Delivery:
    """`reached` is told which step was done; tests end the process there."""

    def __init__(
        self,
        place: WeirCluster,
        told: Told | None = None,
        *,
        reached: Callable[[str], None] = lambda step: None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._place = place
        self._told: Told = told or _Nobody()
        self._reached = reached
        self._now = now
        self._sleep = sleep

    def fix(self, replay: Replay) -> Replay:
        """The selection is there: how many it has, and who delivers it, is kept before anything is sent."""
        with Cluster(connection(self._place.options)) as cluster:
            name = kafka_name(selection_topic(replay))
            parts = cluster.partitions([name])
            counts = [sum(one.num_rows for one in self._rows(part, 1, cluster)) for part in parts]
            producer = init_producer(cluster)
        self._reached("counted")
        found = report(
            self._place.access,
            replay,
            state=ReplayState.DELIVERING,
            selected=counts,
            producer=(producer.id, producer.epoch),
        )
        self._reached("fixed")
        return found

    def run(self, replay: Replay) -> Replay:
        """Deliver what is left. ReplayStateError if somebody has ended it."""
        with Cluster(connection(self._place.options)) as cluster:
            for _ in range(_MOST_RESTARTS):
                try:
                    done = self._deliver(cluster, replay)
                    break
                except OutOfOrderSequenceError:
                    # Another process delivers the same, or the last words of one that was killed came after all.
                    self._sleep(0.1)
                    cluster.close()
            else:
                raise ReplayStateError(
                    f"where replay {replay.id} goes it is not known any more what was delivered",
                    hint="weir replay cancel ends it; what was delivered stays",
                )
        check_same_topics(self._place, replay)
        self._reached("delivered")
        found = report(self._place.access, replay, state=ReplayState.DONE, delivered=done)
        self._reached("done")
        drop_selection(self._place, replay)
        return found

    # --- sending -------------------------------------------------------------------------------------------------

    def _deliver(self, cluster: Cluster, replay: Replay) -> Sequence[int]:
        target = kafka_name(replay.target)
        places = [Partition(target, index) for index in range(len(replay.selected))]
        known = stored_sequences(cluster, places, replay.producer_id)
        done = [
            max(known.get(place, -1) + 1, before)
            for place, before in zip(places, replay.delivered or (0,) * len(places), strict=True)
        ]
        self._told.begin(sum(replay.selected), sum(done))
        compress, attributes = compressor(Compression.LZ4), 0 if replay.subscription is None else ADDRESSED
        sender = Sender(cluster, window=_WINDOW)
        began, sent, said_s = self._now(), 0, self._now()
        parts = [self._batches(replay, index, first) for index, first in enumerate(done)]
        for one in in_turns(parts, _BESIDE):
            stamp = Stamp(replay.producer_id, replay.producer_epoch, one.sequence)
            batch = one.chunk.seal(stamp, Compression.LZ4, compress, attributes)
            self._reached("sending")
            sender.send({places[one.partition]: batch})
            if replay.rate:
                sender.flush()
            self._reached("sent")
            done[one.partition] = one.sequence + one.chunk.count
            sent += one.chunk.count
            self._told.advance(one.chunk.count)
            if self._now() - said_s >= _REPORT_S:
                sender.flush()
                self._say(replay, done)
                said_s = self._now()
                self._reached("reported")
            if replay.rate:
                self._keep_pace(replay, began, sent)
        sender.flush()
        return done

    def _say(self, replay: Replay, done: Sequence[int]) -> None:
        """How far it is. ReplayStateError if it was cancelled."""
        try:
            now = report(self._place.access, replay, delivered=done)
        except WeirError:
            now = find_replay(self._place.access, replay.id)
        if now.state is not ReplayState.DELIVERING:
            raise ReplayStateError(f"replay {replay.id} is {now.state.value}")
        check_same_topics(self._place, now)

    def _keep_pace(self, replay: Replay, began: float, sent: int) -> None:
        due = began + sent / replay.rate
        while (left := due - self._now()) > 0:
            self._sleep(min(left, _REPORT_S))

    # --- the selection -------------------------------------------------------------------------------------------

    def _batches(self, replay: Replay, index: int, first: int) -> Iterator[_Sent]:
        """From this sequence number on. Batches are made from the beginning, so that they are the same."""
        if first >= replay.selected[index]:
            return
        name, at = kafka_name(selection_topic(replay)), 0
        splitter = Splitter(name, lambda _: len(replay.selected), now_ms=lambda: 0)
        with Cluster(connection(self._place.options)) as cluster:
            read = self._rows(Partition(name, index), min(_BESIDE, len(replay.selected)), cluster)
            for rows in grouped(read, replay.batch):
                if at + rows.num_rows <= first:
                    at += rows.num_rows
                    continue
                for alike in runs(rows):
                    (_, encoded), *_ = splitter.split(alike)
                    for chunk in chunks(encoded):
                        if at >= first:
                            yield _Sent(index, at, chunk)
                        at += chunk.count

    def _rows(self, part: Partition, at_once: int, cluster: Cluster) -> Iterator[Any]:
        """`at_once`: how many partitions are read beside each other, which share what is kept in memory."""
        whole = Range(part, starts(cluster, [part])[part], ends(cluster, [part])[part])
        read = {"subscribe": part.topic, "includeHeaders": "true", _FETCH: str(max(_LEAST, _MEMORY // at_once))}
        options = parse({**self._place.options, **read}, streaming=False)
        if whole.size:
            yield from read_range(options, whole)


def go_on(place: WeirCluster, replay: Replay, select: Callable[[Replay], None], delivery: Delivery) -> Replay:
    """Until it is done. `select` keeps its messages, if that was not done before."""
    if replay.state is ReplayState.DONE:
        drop_selection(place, replay)
        return replay
    if replay.state is ReplayState.CANCELLED:
        raise ReplayStateError(f"replay {replay.id} was cancelled", hint="begin another one")
    check_same_topics(place, replay)
    if replay.state is ReplayState.SELECTING:
        if not is_picked(place, replay):
            # For who began it alone: what was written by another role's sink would be there a second time.
            report(place.access, replay, state=ReplayState.SELECTING)
            try:
                select(replay)
            except Exception:
                # An earlier attempt, whose client was killed, may have ended meanwhile: its selection counts.
                if not is_picked(place, replay):
                    raise
            check_same_topics(place, replay)
        now = find_replay(place.access, replay.id)  # somebody else may have been faster
        replay = delivery.fix(now) if now.state is ReplayState.SELECTING else now
    return delivery.run(replay)


def sweep(place: WeirCluster) -> None:
    """Selections of replays that have ended: left by who was killed, or found no broker, in the last step."""
    with Cluster(connection(place.options)) as cluster:
        there = {topic for name in cluster.topics() if is_selection(topic := topic_of(name))}
    if there:
        for one in all_replays(place.access):
            if one.state in (ReplayState.DONE, ReplayState.CANCELLED) and selection_topic(one) in there:
                drop_selection(place, one)


def cancel(place: WeirCluster, replay: Replay) -> Replay:
    """End it here; what was delivered stays."""
    found = report(place.access, replay, state=ReplayState.CANCELLED)
    drop_selection(place, replay)
    return found
