"""Loops that write the bytes of Kafka's records from columns, and say which partition a key belongs to.

As in `kernels`, nothing is allocated in here. A row's part is where it begins in its column's bytes and how many
bytes it has, -1 for null.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weir.spark.source.kernels import Bytes, Ints, compiled, inlined

Out = NDArray[np.uint8] | Any

_SEED = 0x9747B28C
_MIX = 0x5BD1E995
_MASK = 0xFFFFFFFF


@inlined
def number_bytes(number: int) -> int:
    """How many bytes a zigzag number takes."""
    left = (number << 1) ^ (number >> 63)
    size = 1
    while left > 0x7F:
        left >>= 7
        size += 1
    return size


@inlined
def put_number(out: Out, at: int, number: int) -> int:
    """Write a zigzag number; the place after it."""
    left = (number << 1) ^ (number >> 63)
    while left > 0x7F:
        out[at] = (left & 0x7F) | 0x80
        left >>= 7
        at += 1
    out[at] = left
    return at + 1


@inlined
def put_part(out: Out, at: int, data: Bytes, start: int, size: int) -> int:
    """Write a sized part; the place after it."""
    at = put_number(out, at, size)
    if size > 0:
        source = data[start : start + size]
        target = out[at : at + size]
        for step in range(size):
            target[step] = source[step]
        at += size
    return at


@compiled
def measure(keys: Ints, values: Ints, headers: Ints, parts: Ints, bodies: Ints) -> None:
    """How many bytes each record has after its size, but for its deltas: those count from the first row of a
    batch, which is not known yet. `keys` and `values`: rows of (start, size); `headers`: rows of (first, end) in
    `parts`, whose rows are (name start, name size, value start, value size)."""
    for row in range(len(bodies)):
        size = 1
        for column in (keys, values):
            length = column[row, 1]
            size += number_bytes(length) + max(length, 0)
        first, end = headers[row, 0], headers[row, 1]
        size += number_bytes(end - first)
        for index in range(first, end):
            size += number_bytes(parts[index, 1]) + max(parts[index, 1], 0)
            size += number_bytes(parts[index, 3]) + max(parts[index, 3], 0)
        bodies[row] = size


@compiled
def write(  # noqa: PLR0917 (compiled functions take their arguments by position)
    rows: tuple[int, int],
    key_data: Bytes,
    keys: Ints,
    value_data: Bytes,
    values: Ints,
    times: Ints,
    name_data: Bytes,
    header_data: Bytes,
    headers: Ints,
    parts: Ints,
    bodies: Ints,
    out: Out,
) -> int:
    """Write the records of rows [first, end), offsets and times counted from the first; how many bytes they take.
    `bodies` is what `measure` found."""
    first, end = rows
    at = 0
    base = times[first]
    for row in range(first, end):
        time_delta, delta = times[row] - base, row - first
        at = put_number(out, at, bodies[row] + number_bytes(time_delta) + number_bytes(delta))
        out[at] = 0
        at = put_number(out, at + 1, time_delta)
        at = put_number(out, at, delta)
        at = put_part(out, at, key_data, keys[row, 0], keys[row, 1])
        at = put_part(out, at, value_data, values[row, 0], values[row, 1])
        at = put_number(out, at, headers[row, 1] - headers[row, 0])
        for index in range(headers[row, 0], headers[row, 1]):
            at = put_part(out, at, name_data, parts[index, 0], parts[index, 1])
            at = put_part(out, at, header_data, parts[index, 2], parts[index, 3])
    return at


@inlined
def murmur2(data: Bytes, start: int, size: int) -> int:
    """The hash by which Kafka's own clients spread keys."""
    found = (_SEED ^ size) & _MASK
    for block in range(size // 4):
        at = start + 4 * block
        word = (
            (data[at] & 0xFF)
            | ((data[at + 1] & 0xFF) << 8)
            | ((data[at + 2] & 0xFF) << 16)
            | ((data[at + 3] & 0xFF) << 24)
        )
        word = (word * _MIX) & _MASK
        word ^= word >> 24
        word = (word * _MIX) & _MASK
        found = ((found * _MIX) & _MASK) ^ word
    at = start + (size & ~3)
    left = size & 3
    if left == 3:
        found ^= (data[at + 2] & 0xFF) << 16
    if left >= 2:
        found ^= (data[at + 1] & 0xFF) << 8
    if left >= 1:
        found = ((found ^ (data[at] & 0xFF)) * _MIX) & _MASK
    found ^= found >> 13
    found = (found * _MIX) & _MASK
    return found ^ (found >> 15)


@compiled
def choose(data: Bytes, keys: Ints, partitions: int, chosen: Ints, spare: int) -> None:
    """The partition of each row that has none yet (-1): by its key, or `spare` if it has no key."""
    for row in range(len(chosen)):
        if chosen[row] < 0:
            if keys[row, 1] < 0:
                chosen[row] = spare
            else:
                chosen[row] = (murmur2(data, keys[row, 0], keys[row, 1]) & 0x7FFFFFFF) % partitions
