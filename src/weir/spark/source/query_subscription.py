"""A running query as a subscription: its position and progress, kept by the brokers where everybody can see them.

Spark tells a stream's reader neither the query's name nor its checkpoint; only tasks learn both. So unless the
query gives a name itself, a task of its first batch places it under the name that it learned, with a mark, and the
reader finds the name by that mark. What tasks find lost is told the same way, and added up by the reader.

What a running query tells with its position, for all to see: its batches, their size and rate, its losses.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid4

from pyspark import TaskContext

from weir.client.kafka import groups as positions
from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.settings import KafkaSettings
from weir.model.errors import WeirError
from weir.spark.options import SourceOptions
from weir.spark.workers import query_id

#: The brokers keep no more than 4 KiB with a position.
_MOST_GAPS = 64


@dataclass(frozen=True, slots=True)
class Progress:
    """Of a query since its beginning, through restarts."""

    batch: int = 0
    rows: int = 0
    rows_per_s: float = 0.0
    lost: int = 0

    def after(self, batch: tuple[int, float] | None, lost: int) -> "Progress":
        """With one more batch, of so many rows in so many seconds, and messages that were gone before it."""
        known = replace(self, lost=self.lost + lost)
        if batch is None:
            return known
        rows, seconds = batch
        return replace(known, batch=self.batch + 1, rows=rows, rows_per_s=round(rows / max(seconds, 0.001), 1))

    def metadata(self, *, retain: bool, run: str = "", topic_id: str = "") -> str:
        """As the broker reads it from a position's metadata."""
        return Said(self, retain, run, topic_id=topic_id).metadata()


@dataclass(frozen=True, slots=True)
class Said:
    """The metadata of one position."""

    progress: Progress = field(default_factory=Progress)
    retain: bool = False
    #: The mark of the reader that looks for its query's name.
    run: str = ""
    #: What tasks found lost since the reader told something: each range once, however often its task is done.
    gaps: tuple[tuple[int, int], ...] = ()
    #: Which topic of its name the position is of; empty: unknown.
    topic_id: str = ""

    @property
    def lost_by_tasks(self) -> int:
        return sum(end - first for first, end in self.gaps)

    def with_gap(self, first: int, end: int) -> "Said":
        if (first, end) in self.gaps:
            return self
        if len(self.gaps) >= _MOST_GAPS:
            return replace(self, progress=self.progress.after(None, end - first))
        return replace(self, gaps=(*self.gaps, (first, end)))

    def metadata(self) -> str:
        one = self.progress
        said: dict[str, object] = {"weir.query": 1, "batch": one.batch, "rows": one.rows}
        said |= {"rowsPerSecond": one.rows_per_s, "lost": one.lost + self.lost_by_tasks}
        if self.retain:
            said["retain"] = True
        if self.run:
            said["run"] = self.run
        if self.gaps:
            said["gaps"] = self.gaps
        if self.topic_id:
            said["topicId"] = self.topic_id
        return json.dumps(said)

    @staticmethod
    def parse(metadata: str) -> "Said":
        try:
            said = json.loads(metadata)
            gaps = tuple((int(first), int(end)) for first, end in said.get("gaps", ()))
            lost = int(said["lost"]) - sum(end - first for first, end in gaps)
            progress = Progress(int(said["batch"]), int(said["rows"]), float(said["rowsPerSecond"]), lost)
            topic_id = str(said.get("topicId", ""))
            return Said(progress, said.get("retain") is True, str(said.get("run", "")), gaps, topic_id)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return Said()


def from_metadata(positions: Iterable[tuple[int, str]]) -> Progress:
    """What the query told before it was restarted, by the metadata of its positions."""
    return latest(Said.parse(metadata) for _, metadata in positions)


def latest(said: Iterable[Said]) -> Progress:
    """The progress of the last batch that was told of; what tasks told since is not in it."""
    return max((one.progress for one in said), key=lambda one: (one.batch, one.lost), default=Progress())


log = logging.getLogger(__name__)

#: How long a micro-batch may wait for its position to be kept.
_PATIENCE_S = 2.0
#: How often a name is looked for that no task has told.
_SEARCHES = 3
#: As Spark gives it to the tasks of a stream.
_DESCRIPTION = "spark.job.description"

Offsets = Mapping[Partition, int]


@dataclass(frozen=True, slots=True)
class Teller:
    """What a task needs to tell something of its query; travels there."""

    kafka: KafkaSettings
    retain: bool | None
    #: The reader's mark.
    run: str
    #: What comes before the name that Spark knows, of a query that gave itself none.
    prefix: str
    name: str | None

    def place(self, start: Offsets) -> None:
        """The query exists, and a batch of it begins here."""
        self._tell(lambda cluster, name: self._place(cluster, name, start))

    def lost(self, partition: Partition, first: int, end: int) -> None:
        """Offsets were gone when a task wanted them."""
        self._tell(lambda cluster, name: _add_gap(cluster, name, partition, (first, end)))

    def _place(self, cluster: Cluster, name: str, start: Offsets) -> None:
        before = from_metadata(positions.described(cluster, name, start).values())
        positions.commit(
            cluster, name, start, before.metadata(retain=retains(self.retain, name, self.prefix), run=self.run)
        )

    def _tell(self, work: Callable[[Cluster, str], None]) -> None:
        name = self.name or query_name(self.prefix)
        if name is None:
            return
        try:
            with Cluster(replace(self.kafka, retry_for_s=_PATIENCE_S)) as cluster:
                work(cluster, name)
        except WeirError as failure:
            log.warning("subscription %s was not told of its query: %s", name, failure)


def _add_gap(cluster: Cluster, name: str, partition: Partition, gap: tuple[int, int]) -> None:
    offset, metadata = positions.described(cluster, name, [partition]).get(partition, (gap[0], ""))
    positions.commit(cluster, name, {partition: offset}, Said.parse(metadata).with_gap(*gap).metadata())


def query_name(prefix: str) -> str | None:
    """In a task of a stream, its query's name, or the id that its checkpoint has."""
    context, identity = TaskContext.get(), query_id()
    if context is None or identity is None:
        return None
    before, found, _ = (context.getLocalProperty(_DESCRIPTION) or "").partition(f"id = {identity}")
    name = re.sub(r"[^\w.-]+", "-", before.removesuffix("<br/>").strip()) if found else ""
    return f"{prefix}-{name or identity}"


def retains(wanted: bool | None, name: str, prefix: str) -> bool:
    """Whether the topics keep what the query has not read. Unless it says so itself: if it has a name, by which it
    is started again, and by which somebody can find what holds a topic back."""
    if wanted is not None:
        return wanted
    try:
        UUID(name.removeprefix(f"{prefix}-"))
    except ValueError:
        return True
    return False


class Keeper:
    """The reader's side. The query itself goes on from Spark's own checkpoint, so a failure here is worth a
    warning and no more, and little time."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._wanted = options.keep
        self._name = options.subscription
        self._run = uuid4().hex
        self._asked = False
        self._searches = 0
        self._cluster: Cluster | None = None
        #: What the brokers were last told.
        self._kept: Offsets | None = None
        #: None until it is known what they were told before a restart.
        self._progress: Progress | None = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_cluster": None}

    def wants_place(self) -> bool:
        """Whether a task should tell the query's name, and so can be expected to."""
        self._asked = self._asked or not self._is_settled()
        return not self._is_settled()

    def is_new(self, offsets: Offsets) -> bool:
        """Whether there is something to tell."""
        return self._wanted and offsets != self._kept

    @property
    def is_named(self) -> bool:
        return self._name is not None

    def _is_settled(self) -> bool:
        return self._name is not None or not self._wanted or self._searches >= _SEARCHES

    def teller(self) -> Teller | None:
        """For the tasks; None if nothing is kept."""
        options = self._options
        if not self._wanted:
            return None
        return Teller(options.kafka, options.retain, self._run, options.group_prefix, self._name)

    def commit(self, offsets: Offsets, batch: tuple[int, float] | None, lost: int) -> bool:
        """The query has done what lies before these offsets. `batch`: the rows and seconds of the one that ended
        here. False if there is nothing new to tell, or the query's name is not known yet."""
        if not self.is_new(offsets):
            return False
        try:
            return self._commit(offsets, batch, lost)
        except WeirError as failure:
            self._kept = offsets  # said once
            log.warning("the position of subscription %s was not kept: %s", self._name, failure)
            return True

    def _commit(self, offsets: Offsets, batch: tuple[int, float] | None, lost: int) -> bool:
        if self._cluster is None:
            self._cluster = Cluster(replace(self._options.kafka, retry_for_s=_PATIENCE_S))
        cluster, name = self._cluster, self._name or self._find(self._cluster, offsets)
        if name is None:
            return False
        if self._progress is None or not self._options.fail_on_data_loss:
            told = [Said.parse(metadata) for _, metadata in positions.described(cluster, name, offsets).values()]
            self._progress = self._progress or latest(told)
            lost += sum(one.lost_by_tasks for one in told)
        self._progress = self._progress.after(batch, lost)
        self._kept = offsets
        retain = retains(self._options.retain, name, self._options.group_prefix)
        positions.commit(cluster, name, offsets, self._progress.metadata(retain=retain))
        return True

    def _find(self, cluster: Cluster, offsets: Offsets) -> str | None:
        """The name under which a task has placed this query."""
        if not self._asked or self._is_settled():
            return None
        self._searches += 1
        for group in positions.groups(cluster, f"{self._options.group_prefix}-"):
            told = positions.described(cluster, group, offsets).values()
            if any(Said.parse(metadata).run == self._run for _, metadata in told):
                self._name = group
                return group
        if self._is_settled():
            log.warning("the query is no subscription: no task could tell its name")
        return None

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
