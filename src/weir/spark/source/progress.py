"""What a running query tells with its position, for all to see: its batches, their size and rate, its losses."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

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
