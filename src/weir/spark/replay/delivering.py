"""What was picked, delivered in order by an idempotent producer: sequence numbers are places in the selection.

So whoever goes on after a kill asks where the messages go how far the producer got, and begins there; what was
sent and not answered is there once, however often it is sent. A batch is the same whenever it is made: it ends
where the selection says, not where somebody stopped.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.client.kafka.admin import stored_sequences
from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.offsets import ends, starts
from weir.client.kafka.producing import Sender
from weir.client.kafka.transactions import init_producer
from weir.client.replays import find_replay, report
from weir.model.batch import Stamp
from weir.model.errors import OutOfOrderSequenceError, ReplayStateError, WeirError
from weir.model.replays import Replay, ReplayState
from weir.spark.replay.selecting import drop_selection, selection_topic
from weir.spark.sink.encode import Chunk, Splitter, chunks
from weir.spark.source.options import connection, parse
from weir.spark.source.ranges import Range
from weir.spark.source.reading import read_range
from weir.spark.sql.cluster import WeirCluster, kafka_name
from weir.spark.values.typed import versions_of
from weir.wire.kafka.compression import compressor
from weir.wire.kafka.records import ADDRESSED, Compression
from weir.wire.pulsar.translation import METADATA

#: How often it is kept how far a replay is, and how many messages may be on their way.
_REPORT_S = 1.0
_WINDOW = 4
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
            counts = [self._count(cluster, part) for part in cluster.partitions([name])]
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
        for one in _in_turns([self._batches(replay, index, first) for index, first in enumerate(done)]):
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
        with suppress(WeirError):
            report(self._place.access, replay, delivered=done)
            return
        now = find_replay(self._place.access, replay.id)
        if now.state is not ReplayState.DELIVERING:
            raise ReplayStateError(f"replay {replay.id} is {now.state.value}")

    def _keep_pace(self, replay: Replay, began: float, sent: int) -> None:
        due = began + sent / replay.rate
        while (left := due - self._now()) > 0:
            self._sleep(min(left, _REPORT_S))

    # --- the selection -------------------------------------------------------------------------------------------

    def _count(self, cluster: Cluster, part: Partition) -> int:
        return sum(batch.num_rows for batch in self._rows(part.topic, part.index, cluster))

    def _batches(self, replay: Replay, index: int, first: int) -> Iterator[_Sent]:
        """From this sequence number on. Batches are made from the beginning, so that they are the same."""
        if first >= replay.selected[index]:
            return
        name, at = kafka_name(selection_topic(replay)), 0
        splitter = Splitter(name, lambda _: len(replay.selected), now_ms=lambda: 0)
        with Cluster(connection(self._place.options)) as cluster:
            for rows in grouped(self._rows(name, index, cluster), replay.batch):
                if at + rows.num_rows <= first:
                    at += rows.num_rows
                    continue
                for alike in runs(rows):
                    (_, encoded), *_ = splitter.split(alike)
                    for chunk in chunks(encoded):
                        if at >= first:
                            yield _Sent(index, at, chunk)
                        at += chunk.count

    def _rows(self, topic: str, index: int, cluster: Cluster) -> Iterator[Any]:
        part = Partition(topic, index)
        whole = Range(part, starts(cluster, [part])[part], ends(cluster, [part])[part])
        options = parse({**self._place.options, "subscribe": topic, "includeHeaders": "true"}, streaming=False)
        if whole.size:
            yield from read_range(options, whole)


def grouped(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """The same rows, so many at a time."""
    waiting: list[Any] = []
    have = 0
    for batch in batches:
        at = 0
        while have + batch.num_rows - at >= count:
            waiting.append(batch.slice(at, count - have))
            yield _one(waiting)
            at, have, waiting = at + count - have, 0, []
        if at < batch.num_rows:
            waiting.append(batch.slice(at))
            have += batch.num_rows - at
    if waiting:
        yield _one(waiting)


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


def _one(batches: list[Any]) -> Any:
    """As one batch whose buffers begin with its first row."""
    table = pa.Table.from_batches(batches).combine_chunks()
    found = table.to_batches()
    return found[0] if len(found) == 1 else pa.concat_batches(found)


def _in_turns(parts: list[Iterator[_Sent]]) -> Iterator[_Sent]:
    """One batch of each partition after the other."""
    while parts:
        left = []
        for part in parts:
            one = next(part, None)
            if one is not None:
                left.append(part)
                yield one
        parts = left
