"""A stream of topics: where each micro-batch ends, what it reads, and the position that a subscription keeps."""

import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from threading import Thread
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.fetch import bounds, starts
from weir.spark.options import EARLIEST, SourceOptions, from_json, ids_of, recreated, to_json
from weir.spark.source.planning import Losses, Offsets, Range, limited, partitions_of, split, start_offsets
from weir.spark.source.query_subscription import Keeper, Teller

if TYPE_CHECKING:
    from weir.spark.lake.history import TopicHistory
    from weir.spark.values.typed import ValueSchema

Json = dict[str, dict[str, Any]]

#: So long it holds where partitions begin: a batch is planned, maybe more than once, right after its end was asked
#: for. What is trimmed in between, a task finds.
_BEGINNINGS_S = 1.0


class Piece(InputPartition):
    """What one task reads, and what it may tell of its query. `place`: where the query's batch begins, to be told
    by this task."""

    def __init__(
        self,
        value: Range,
        teller: Teller | None = None,
        place: Offsets | None = None,
        history: "TopicHistory | None" = None,
        topic_id: str = "",
    ) -> None:
        super().__init__(value)
        self.teller = teller
        #: Of the topic as it was when the batch was planned; empty if it is not known.
        self.topic_id = topic_id
        self.place = place
        #: Where the range is, if brokers no longer have it.
        self.history = history


class Telling:
    """A position that is being told, and what was known with it: `batch`, and how much was lost."""

    def __init__(self, work: Callable[[], bool], batch: tuple[Json, int, float] | None, lost: int) -> None:
        self.batch = batch
        self.lost = lost
        self._found = False
        self._thread = Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], bool]) -> None:
        self._found = work()

    def ended(self) -> bool:
        """Whether it was told; waits until that is known."""
        self._thread.join()
        return self._found


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in one process of the driver as long as its query runs; copies of it read in the tasks."""

    def __init__(self, options: SourceOptions, values: "Mapping[str, ValueSchema] | None" = None) -> None:
        self._options = options
        self._values = values
        self._cluster: Cluster | None = None
        self._keeper = Keeper(options)
        self._losses = Losses(options.fail_on_data_loss)
        self._histories: dict[str, TopicHistory] = {}
        #: With the trigger available-now: where the topics ended when the query began.
        self._target: Offsets | None = None
        self._latest: Offsets = {}
        #: The ids of the topics that `_latest` is about.
        self._ids: dict[str, str] = {}
        #: Where partitions begin, and when that was so.
        self._oldest: tuple[float, Offsets] = (float("-inf"), {})
        #: When a micro-batch was last not held back; never at first, so that the first is not.
        self._last_trigger = float("-inf")
        #: The micro-batch under way: where it ends, its offsets, and when it was planned.
        self._batch: tuple[Json, int, float] | None = None

        self._telling: Telling | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cluster": None, "_telling": None}

    # --- where a micro-batch ends ---

    def initialOffset(self) -> Json:
        partitions = partitions_of(self._brokers(), self._options)
        begins = start_offsets(self._brokers(), self._options, partitions)
        if self._options.start.word == EARLIEST:
            begins = {part: self._first_of(part, offset) for part, offset in begins.items()}
        found = to_json(begins, self._brokers().topic_ids)
        if self._options.retain is not False:  # what is there now is the first that must stay
            self._tell(found)
            self._told()
        return found

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_per_trigger is not None:
            return ReadMaxRows(self._options.max_per_trigger)
        if self._options.min_per_trigger is not None:
            return ReadMinRows(self._options.min_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ends()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        found = self._next(start, limit)
        if found == start:
            # Idle: all before is done. Spark itself says so only when the next batch begins.
            self._tell(start)
            self._told()
        return found

    def _next(self, start: Json, limit: ReadLimit) -> Json:
        self._latest = self._ends() if self._target is None else self._target
        began = self._still_there(start, self._ids)
        self._check_shrunk(began)
        found, ids = began | self._latest, ids_of(start) | self._ids
        if not isinstance(limit, ReadAllAvailable):
            first = began | self._starts_of_new(began, found)
            if self._too_few(first, found):
                return start
            self._last_trigger = time.monotonic()
            found = limited(first, found, limit.max_rows) if isinstance(limit, ReadMaxRows) else found
        return to_json(found, ids)

    def _still_there(self, start: Json, now: Mapping[str, str]) -> Offsets:
        """The query's position, without that in topics that were deleted and created again: those are new topics.
        DataLostError if the query wants to know of them."""
        before = ids_of(start)
        gone = recreated(before, now)
        for topic in gone:
            self._was_recreated(topic, before[topic], now[topic], "the new topic is read from its start")
            self._histories.pop(topic, None)
        return {part: offset for part, offset in from_json(start).items() if part.topic not in gone}

    def _was_recreated(self, topic: str, before: str, now: str, what: str) -> None:
        """DataLostError, or `what` becomes of it."""
        self._losses.recreated(topic, before, now, what)

    def reportLatestOffset(self) -> Json | None:
        return to_json(self._latest, self._ids) if self._latest else None

    def _too_few(self, first: Mapping[Partition, int], found: Mapping[Partition, int]) -> bool:
        """Whether the query asked to wait for more, and has not waited for too long."""
        least = self._options.min_per_trigger
        if least is None or self._target is not None:
            return False
        waited_ms = (time.monotonic() - self._last_trigger) * 1000
        waiting = sum(end - first[partition] for partition, end in found.items())
        return waiting < least and waited_ms < self._options.max_trigger_delay_ms

    def _ends(self) -> Offsets:
        """Where the topics end now; partitions and topics that came since are in it too."""
        brokers = self._brokers()
        partitions = partitions_of(brokers, self._options)
        self._ids = {part.topic: brokers.topic_ids.get(part.topic, "") for part in partitions}
        begin, end = bounds(brokers, partitions, committed=self._options.committed)
        self._oldest = (time.monotonic(), begin)
        return end

    def _ids_now(self, topics: Collection[str]) -> Mapping[str, str]:
        """Which topics of these names there are: as it was told with their ends, if that was just now."""
        if time.monotonic() - self._oldest[0] < _BEGINNINGS_S and self._ids.keys() >= set(topics):
            return self._ids
        brokers = self._brokers()
        brokers.partitions(sorted(topics))
        return brokers.topic_ids

    def _starts(self, partitions: Collection[Partition]) -> Offsets:
        """Where partitions begin: as it was told with their ends, if that was just now."""
        asked, known = self._oldest
        if time.monotonic() - asked < _BEGINNINGS_S and known.keys() >= set(partitions):
            return {partition: known[partition] for partition in partitions}
        return starts(self._brokers(), partitions)

    def _check_shrunk(self, began: Mapping[Partition, int]) -> None:
        """A topic that is gone, or ends before the query's position, was deleted, and maybe made anew."""
        for partition, offset in began.items():
            end = self._latest.get(partition, offset if self._target else 0)
            if end < offset:
                there = partition in self._latest
                why = "are not in the topic: it was made anew, or they never were" if there else "went with it"
                self._losses.report(partition, end, offset, why)

    def _starts_of_new(self, began: Mapping[Partition, int], found: Mapping[Partition, int]) -> Offsets:
        new = [partition for partition in found if partition not in began]
        return self._starts(new)

    # --- what it reads ---

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        ended, ids = self._planned(end, start), ids_of(end)
        new = self._new_in(start, end)
        began = {part: offset for part, offset in from_json(start).items() if part.topic not in new}
        began |= self._begins_of_new([part for part in ended if part not in began and part.topic not in new])
        oldest = self._starts([part for part, to in ended.items() if to != began.get(part, 0)])
        ranges, older = [], []
        for partition, first_there in oldest.items():
            # A partition that is new to the query is read from its beginning, which is 0 unless something is lost.
            first, to = began.get(partition, 0), ended[partition]
            if to < first:  # the topic was made anew, and all of it is new
                first = first_there
            if first < first_there and (history := self._history(partition, min(first_there, to))) is not None:
                older.append((history, Range(partition, first, min(first_there, to))))
                first = min(first_there, to)
            if first < first_there and first < to:
                self._losses.report(partition, first, min(first_there, to))
                first = first_there
            ranges.append(Range(partition, first, to))
        ranges = [one for one in ranges if one.size > 0]
        self._batch = (end, sum(one.size for one in [*ranges, *(one for _, one in older)]), time.monotonic())
        most = self._options.max_records_per_partition
        before = [Piece(piece, history=found) for found, one in older for piece in split([one], None, most)]
        pieces = split(ranges, self._options.min_partitions, self._options.max_records_per_partition)
        teller = self._keeper.teller()
        # One task is enough to say that the query is there.
        place = {one.partition: one.start for one in ranges} | began if self._keeper.wants_place() else None
        return [
            *before,
            *(
                Piece(piece, teller, None if at else place, topic_id=ids.get(piece.partition.topic, ""))
                for at, piece in enumerate(pieces)
            ),
        ]

    def _new_in(self, start: Json, end: Json) -> Collection[str]:
        """Topics that were created again between these two positions: a batch reads them from their start."""
        return recreated(ids_of(start), ids_of(end))

    def _planned(self, end: Json, start: Json) -> Offsets:
        """Where a batch ends, without topics that were created again since it was planned: the offsets say nothing
        of the new ones, which the next batch reads. DataLostError if the query wants to know of them."""
        ended, began, ids = from_json(end), from_json(start), ids_of(end)
        new = self._new_in(start, end)
        read = {part.topic for part, to in ended.items() if to != began.get(part, 0) or part.topic in new}
        known = {topic: ids[topic] for topic in read if topic in ids}
        now = self._ids_now(known) if known else {}
        gone = recreated(known, now)
        for topic in gone:
            self._was_recreated(topic, known[topic], now[topic], "a batch that was planned before is left out")
            self._histories.pop(topic, None)
        return {part: offset for part, offset in ended.items() if part.topic not in gone}

    def _begins_of_new(self, partitions: Sequence[Partition]) -> Offsets:
        """Where partitions begin that are new to the query, other than at 0."""
        return {}

    def _first_of(self, partition: Partition, oldest: int) -> int:
        """Where a partition begins, in the lake or with the brokers."""
        history = self._history(partition, oldest) if oldest > 0 else None
        return oldest if history is None else min(oldest, history.first.get(partition.index, oldest))

    def _history(self, partition: Partition, end: int) -> "TopicHistory | None":
        """What the lake has of a topic, if that is all below this offset."""
        found = self._histories.get(partition.topic)
        if found is None or not found.covers(partition.index, end):
            from weir.spark.lake.history import find_topic_history

            found = find_topic_history(self._options, partition.topic)
            if found is None or not found.covers(partition.index, end):
                return None
            self._histories[partition.topic] = found
        return found

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from weir.spark.source.reading import read_range  # only tasks need it, and its compiler

        if isinstance(partition, Piece) and partition.history is not None:
            return partition.history.read(partition.value, self._options, self._values)
        teller = partition.teller if isinstance(partition, Piece) else None
        if isinstance(partition, Piece) and teller is not None and partition.place is not None:
            teller.place(partition.place)
        losses = Losses(self._options.fail_on_data_loss, tell=None if teller is None else teller.lost)
        topic_id = partition.topic_id if isinstance(partition, Piece) else ""
        return read_range(self._options, partition.value, self._values, losses, topic_id=topic_id)

    # --- the subscription ---

    def commit(self, end: Json) -> None:
        """Keep the position where everybody can see it, while Spark goes on with the next batch."""
        self._tell(end)
        if not self._keeper.is_named:  # a task of that batch would be asked for the name again
            self._told()

    def _tell(self, end: Json) -> None:
        self._told()
        offsets = from_json(end)
        if self._keeper.is_new(offsets):
            done, lost = self._done(end), self._losses.count
            self._telling = Telling(lambda: self._keeper.commit(offsets, done, lost), self._batch, lost)

    def _told(self) -> None:
        """Wait for what is being told."""
        telling, self._telling = self._telling, None
        if telling is not None and telling.ended():
            self._losses.count -= telling.lost
            if self._batch is telling.batch:
                self._batch = None

    def _done(self, end: Json) -> tuple[int, float] | None:
        """The rows of the batch that ended here, and the seconds that it took."""
        if self._batch is None or self._batch[0] != end:
            return None
        _, rows, began = self._batch
        return rows, time.monotonic() - began

    def stop(self) -> None:
        self._told()
        self._keeper.close()
        if self._cluster is not None:
            self._cluster.close()
        if isinstance(sys.exception(), EOFError):
            # Spark has ended the query and closed its end of the pipe. Its runner, which calls this, would now try
            # to tell it so, and print what comes of that: three tracebacks for every query that was stopped.
            os._exit(0)

    def _brokers(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._options.kafka)
        return self._cluster
