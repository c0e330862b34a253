"""The compiled loop that reads Avro records: where each field of each value is, or what it is."""

from weir.spark.kernels import Bytes, Ints, compiled, inlined, number, part

_BOOLEAN, _INTEGER, _FLOAT, _DOUBLE, _BYTES = 1, 2, 3, 4, 5


@inlined
def field_of(data: Bytes, at: int, end: int, step: int) -> tuple[int, int, int]:
    """A field that is there: its number, bits or place, its size, and the place after it (-1: it is malformed)."""
    if step == _INTEGER:
        found, at = number(data, at, end)
        return found, 0, at
    if step == _BYTES:
        found, size, at = part(data, at, end)
        return (found, size, at) if size >= 0 else (0, 0, -1)
    size = 1 if step == _BOOLEAN else (4 if step == _FLOAT else 8)
    if size > end - at:
        return 0, 0, -1
    found = 0
    for index in range(size):  # little-endian
        found |= (data[at + index] & 0xFF) << (8 * index)
    return found, size, at + size


@compiled
def scan_avro(data: Bytes, spans: Ints, steps: Ints, found: Ints, sizes: Ints) -> None:
    """Read the values at `spans` (begin and end; a begin of -1 is a null) by the `steps` of their fields.

    `steps` has, for each field, its step and the null branch of its union. `found[field, row]` is the number, the
    bits of the float, or where the bytes begin; `sizes[field, row]` their size, -1 for a null. The span of a value
    that is not as it should be gets a begin of -2.
    """
    for row in range(len(spans)):
        at, end = spans[row, 0], spans[row, 1]
        for field in range(len(steps)):
            found[field, row] = 0
            sizes[field, row] = -1
            branch = -1
            if at >= 0 and steps[field, 1] >= 0:
                branch, at = number(data, at, end)
                if branch < 0 or branch > 1:
                    at = -1
            if at >= 0 and (branch < 0 or branch != steps[field, 1]):
                found[field, row], sizes[field, row], at = field_of(data, at, end, steps[field, 0])
        if spans[row, 0] >= 0 and at != end:
            spans[row, 0] = -2
