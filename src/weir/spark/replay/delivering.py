"""What was picked, delivered in order by an idempotent producer: sequence numbers are places in the selection.

So whoever goes on after a kill asks where the messages go how far the producer got, and begins there; what was
sent and not answered is there once, however often it is sent. A batch is the same whenever it is made: it ends
where the selection says, not where somebody stopped.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from weir.client.kafka.admin import stored_sequences
from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.offsets import ends, starts
from weir.client.kafka.producing import Sender
from weir.client.kafka.transactions import init_producer
from weir.client.registry import kafka_name
from weir.client.replays import find_replay, report
from weir.model.batch import Stamp
from weir.model.errors import OutOfOrderSequenceError, ReplayStateError, WeirError
from weir.model.replays import Replay, ReplayState
from weir.spark.replay.batching import grouped, in_turns, runs
from weir.spark.replay.requests import check_same_topics
from weir.spark.replay.selecting import drop_selection, selection_topic
from weir.spark.sink.encode import Chunk, Splitter, chunks
from weir.spark.source.options import connection, parse
from weir.spark.source.ranges import Range
from weir.spark.source.reading import read_range
from weir.spark.sql.cluster import WeirCluster
from weir.wire.kafka.compression import compressor
from weir.wire.kafka.records import ADDRESSED, Compression

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
