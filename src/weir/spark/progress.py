"""What a running query tells with its position, for all to see: its batches, their size and rate, its losses."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace


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

    def metadata(self, *, retain: bool) -> str:
        """As the broker reads it from a position's metadata."""
        said = {"weir.query": 1, "batch": self.batch, "rows": self.rows, "rowsPerSecond": self.rows_per_s}
        return json.dumps(said | {"lost": self.lost} | ({"retain": True} if retain else {}))


def from_metadata(positions: Iterable[tuple[int, str]]) -> Progress:
    """What the query told before it was restarted, by the metadata of its positions."""
    return max((_parse(metadata) for _, metadata in positions), key=lambda one: one.batch, default=Progress())


def _parse(metadata: str) -> Progress:
    try:
        said = json.loads(metadata)
        return Progress(int(said["batch"]), int(said["rows"]), float(said["rowsPerSecond"]), int(said["lost"]))
    except (ValueError, TypeError, LookupError, RecursionError):
        return Progress()
