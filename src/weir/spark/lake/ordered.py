"""Rows of several files in the order of their offsets, of which no more is in memory than a row group of each file
that is being read: values may be large, and files of days overlap where producers give times as they like."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(slots=True)
class _Head:
    """What was read of a file and is not told yet, and what comes behind it."""

    batch: Any
    rest: Iterator[Any]

    @property
    def last(self) -> int:
        return int(self.batch.column("offset")[-1].as_py())

    def taken(self, last: int) -> Any:
        """Rows up to this offset, which are told now; empty if there are none."""
        count = int(self.batch.column("offset").to_numpy().searchsorted(last, side="right"))
        found, self.batch = self.batch.slice(0, count), self.batch.slice(count)
        return found

    def goes_on(self) -> bool:
        """Whether there are more, which are read if there are none at hand."""
        while not self.batch.num_rows:
            following = next(self.rest, None)
            if following is None:
                return False
            self.batch = following
        return True


#: Where the rows of a file begin, and what reads them in order.
Source = tuple[int, Callable[[], Iterator[Any]]]


def in_order(sources: Sequence[Source], schema: Any) -> Iterator[Any]:
    """Tables of this schema. A file is opened when its first offset is reached."""
    waiting = sorted(sources, key=lambda one: one[0], reverse=True)
    heads: list[_Head] = []
    while heads or waiting:
        # Whatever is read later of these files lies behind the end of what is at hand.
        last = min((head.last for head in heads), default=None)
        if waiting and (last is None or waiting[-1][0] <= last):
            head = _Head(_nothing(schema), waiting.pop()[1]())
            if head.goes_on():
                heads.append(head)
            continue
        if last is None:
            break
        parts = [part for head in heads if (part := head.taken(last)).num_rows]
        heads = [head for head in heads if head.goes_on()]
        found = pa.Table.from_batches(parts, schema)
        yield found if len(parts) == 1 else found.sort_by("offset")


def _nothing(schema: Any) -> Any:
    return pa.RecordBatch.from_pylist([], schema)
