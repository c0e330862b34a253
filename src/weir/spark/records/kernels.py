"""Loops over the bytes of record batches, compiled by numba: where every batch, record, key, value and header is.

They make no objects, only numbers in arrays that the caller gives them, and never look beyond the bytes they were
given: compiled code checks no index itself. Without numba the same source runs as it is, slowly.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from weir.model.ids import Buffer
from weir.wire.batch import MAX_COUNT
from weir.wire.kafka.record_batch import HEADER_BYTES, LOG_APPEND_TIME

njit: Any
try:
    from numba import njit
except ImportError:  # an installation without the extra's compiler
    njit = None

COMPILED = njit is not None

F = TypeVar("F", bound=Callable[..., Any])

#: Bytes as the loops see them.
Bytes = Any
Ints = NDArray[np.int64]


def compiled(function: F) -> F:
    """The function as machine code, kept on disk between processes.

    Nothing is allocated in here, so no references are counted (`_nrt`): counting at every call of a helper took
    longer than all the rest.
    """
    if njit is None:
        return function
    try:
        return cast(F, njit(cache=True, nogil=True, _nrt=False)(function))
    except RuntimeError:  # no folder can be written to: compile in each process
        return cast(F, njit(nogil=True, _nrt=False)(function))


def inlined(function: F) -> F:
    """A compiled function that becomes part of its callers."""
    return function if njit is None else cast(F, njit(_nrt=False, forceinline=True)(function))


def bytes_of(data: Buffer) -> Bytes:
    """A buffer as the loops want it: always of one type, or each would be compiled again."""
    if not COMPILED:
        return memoryview(data).cast("B")  # Arrow's are of signed bytes
    found = np.frombuffer(data, np.uint8)
    found.flags.writeable = False
    return found


# Columns of the table of batches: where it begins, its size with the header, and what the header says.
AT, SIZE, BASE, ATTRIBUTES, LAST_DELTA, BASE_TIME, MAX_TIME, PRODUCER, RECORDS, CHECKSUM = range(10)
BATCH_COLUMNS = 10

# Columns of the table of records.
OFFSET, TIME, KEY_AT, KEY_SIZE, VALUE_AT, VALUE_SIZE, HEADERS_AT, HEADERS = range(8)
RECORD_COLUMNS = 8
#: The least that a record takes: size, attributes, two deltas, key, value, number of headers.
LEAST_RECORD_BYTES = 7

_MOST = (1 << 63) - 1


@inlined
def integer(data: Bytes, at: int, size: int) -> int:
    """A signed number, big-endian."""
    found = 0
    for index in range(size):
        found = (found << 8) | (data[at + index] & 0xFF)
    limit = 1 << (8 * size - 1)
    if size < 8 and found >= limit:
        found -= 2 * limit
    return found


@inlined
def integer64(data: Bytes, at: int) -> int:
    """A signed number of eight bytes."""
    high = integer(data, at, 4)
    return (high << 32) | (integer(data, at + 4, 4) & 0xFFFFFFFF)


@inlined
def number(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """A zigzag number and the place after it, which is -1 if there is no such number before `end`."""
    if at >= end:
        return 0, -1
    found = data[at] & 0xFF
    at += 1
    if found < 0x80:  # most are
        return (found >> 1) ^ -(found & 1), at
    found &= 0x7F
    shift = 7
    while at < end and shift <= 63:
        group = data[at] & 0xFF
        at += 1
        if shift == 63 and group > 1:
            return 0, -1
        found |= (group & 0x7F) << shift
        if group < 0x80:
            return ((found >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(found & 1), at
        shift += 7
    return 0, -1


@inlined
def part(data: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """Where a sized part begins, its size (-1: null), and the place after it; that is -1 if it is not within."""
    size, at = number(data, at, end)
    if at < 0 or size < -1 or size > end - at:
        return 0, 0, -1
    return at, size, at + max(size, 0)


@compiled
def scan_batches(data: Bytes, table: Ints) -> tuple[int, int]:
    """Fill the table with the whole batches of `data`; their number, and where a bad one begins (-1: none is)."""
    at = 0
    found = 0
    left = len(data)
    while left - at >= HEADER_BYTES:
        size = integer(data, at + 8, 4) + 12
        if size < HEADER_BYTES or data[at + 16] != 2:
            return found, at
        if size > left - at:
            break
        row = table[found]
        row[AT] = at
        row[SIZE] = size
        row[BASE] = integer64(data, at)
        row[CHECKSUM] = integer(data, at + 17, 4) & 0xFFFFFFFF
        row[ATTRIBUTES] = integer(data, at + 21, 2)
        row[LAST_DELTA] = integer(data, at + 23, 4)
        row[BASE_TIME] = integer64(data, at + 27)
        row[MAX_TIME] = integer64(data, at + 35)
        row[PRODUCER] = integer64(data, at + 43)
        row[RECORDS] = integer(data, at + 57, 4)
        if row[LAST_DELTA] < 0 or row[LAST_DELTA] >= MAX_COUNT:
            return found, at
        if row[RECORDS] < 0 or row[RECORDS] > row[LAST_DELTA] + 1:
            return found, at
        if row[BASE] < 0 or row[BASE] > _MOST - row[LAST_DELTA] - 1 or row[ATTRIBUTES] & 7 > 4:
            return found, at
        found += 1
        at += size
    return found, -1


@inlined
def record(data: Bytes, at: int, limit: int) -> tuple[int, int, int, int, int, int, int, int, int]:  # noqa: PLR0911
    """The record at a place: its end (-1: it is malformed), deltas of time and offset, where its parts are."""
    bad = (-1, 0, 0, 0, 0, 0, 0, 0, 0)
    size, at = number(data, at, limit)
    if at < 0 or size < 1 or size > limit - at:
        return bad
    end = at + size
    time_delta, at = number(data, at + 1, end)
    if at < 0:
        return bad
    delta, at = number(data, at, end)
    if at < 0:
        return bad
    key, key_size, at = part(data, at, end)
    if at < 0:
        return bad
    value, value_size, at = part(data, at, end)
    if at < 0:
        return bad
    headers, at = number(data, at, end)
    if at < 0 or headers < 0:
        return bad
    headers_at = at
    for _ in range(headers):
        _, name_size, at = part(data, at, end)
        if at < 0 or name_size < 0:
            return bad
        _, _, at = part(data, at, end)
        if at < 0:
            return bad
    if at != end:
        return bad
    return end, time_delta, delta, key, key_size, value, value_size, headers_at, headers


@compiled
def scan_records(  # noqa: PLR0917 (compiled functions take their arguments by position)
    data: Bytes, batches: Ints, bounds: Ints, span: tuple[int, int], records: Ints, rows: Ints
) -> tuple[int, int]:
    """Fill `records` with those of the batches whose offsets are in `span`: from the first on, below the second.

    `bounds` says where each batch's records begin and end in `data`; `rows` is told how many of each were taken.
    Returns how many there are in all, and the index of a batch that is not as it should be (-1: all are).
    """
    first, end = span
    row = 0
    for index in range(len(batches)):
        base, last_delta = batches[index, BASE], batches[index, LAST_DELTA]
        append_time = batches[index, ATTRIBUTES] & LOG_APPEND_TIME
        base_time = batches[index, MAX_TIME] if append_time else batches[index, BASE_TIME]
        at, limit = bounds[index, 0], bounds[index, 1]
        last = -1
        before = row
        for _ in range(batches[index, RECORDS]):
            at, time_delta, delta, key, key_size, value, value_size, headers_at, headers = record(data, at, limit)
            if at < 0 or delta <= last or delta > last_delta:
                return row, index
            last = delta
            if base + delta < first or base + delta >= end:
                continue
            if append_time:
                time_delta = 0
            if base_time > _MOST - max(time_delta, 0) or base_time < -_MOST - min(time_delta, 0):
                return row, index
            records[OFFSET, row] = base + delta
            records[TIME, row] = base_time + time_delta
            records[KEY_AT, row] = key
            records[KEY_SIZE, row] = key_size
            records[VALUE_AT, row] = value
            records[VALUE_SIZE, row] = value_size
            records[HEADERS_AT, row] = headers_at
            records[HEADERS, row] = headers
            row += 1
        if at != limit:
            return row, index
        rows[index] = row - before
    return row, -1


@compiled
def scan_headers(data: Bytes, starts: Ints, counts: Ints, found: Ints) -> None:
    """Where names and values of headers are, of records that `scan_records` has seen: at, size, at, size."""
    row = 0
    for index in range(len(starts)):
        at = starts[index]
        for _ in range(counts[index]):
            found[0, row], found[1, row], at = part(data, at, len(data))
            found[2, row], found[3, row], at = part(data, at, len(data))
            row += 1


def _copy_by_byte(data: Bytes, starts: Ints, sizes: Ints, out: NDArray[np.uint8]) -> None:
    to = 0
    for index in range(len(starts)):
        size = sizes[index]
        if size > 0:
            # Slices first: indices that cannot be negative let the compiler copy by blocks.
            part_of_data = data[starts[index] : starts[index] + size]
            part_of_out = out[to : to + size]
            for step in range(size):
                part_of_out[step] = part_of_data[step]
            to += size


def _copy_by_part(data: Bytes, starts: Ints, sizes: Ints, out: NDArray[np.uint8]) -> None:
    to = 0
    into = out.data
    for at, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        if size > 0:
            into[to : to + size] = data[at : at + size]
            to += size


#: `(data, starts, sizes, out)`: the parts one after the other; null ones have no bytes.
copy_parts = compiled(_copy_by_byte) if COMPILED else _copy_by_part
