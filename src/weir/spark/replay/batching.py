"""The selection cut into batches by what its messages are, so that a batch is the same whenever it is made."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.spark.source.kernels import Ints
from weir.spark.values.typed import versions_of
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
