"""The compiled loop that reads Avro records: where each field of each value is, or what it is."""

from weir.spark.source.kernels import Bytes, Ints, compiled, inlined, number, part

#: Steps: how a field's bytes are read.
BOOLEAN, INTEGER, FLOAT, DOUBLE, BYTES, FIXED = range(1, 7)


@inlined
def field_of(data: Bytes, at: int, end: int, step: int, fixed: int) -> tuple[int, int, int]:
    """A field that is there: its number, bits or place, its size, and the place after it (-1: it is malformed)."""
    if step == INTEGER:
        found, at = number(data, at, end)
        return found, 0, at
    if step == BYTES:
        found, size, at = part(data, at, end)
        return (found, size, at) if size >= 0 else (0, 0, -1)
    if step == FIXED:
        return (at, fixed, at + fixed) if fixed <= end - at else (0, 0, -1)
    size = 1 if step == BOOLEAN else (4 if step == FLOAT else 8)
    if size > end - at:
        return 0, 0, -1
    found = 0
    for index in range(size):  # little-endian
        byte = data[at + index] & 0xFF
        found |= (byte - 256 if index == 7 and byte > 127 else byte) << (8 * index)
    return found, size, at + size


@inlined
def word_of(data: Bytes, at: int, end: int, sign: int) -> int:
    """The eight bytes before `end`, big-endian; those before `at` are the sign's."""
    found = 0
    for index in range(end - 8, end):
        byte = data[index] & 0xFF if index >= at else sign & 0xFF
        found = byte - 256 if index == end - 8 and byte > 127 else (found << 8) | byte
    return found


@compiled
def scan_avro(data: Bytes, spans: Ints, steps: Ints, found: Ints, sizes: Ints) -> None:
    """Read the values at `spans` (begin and end; a begin of -1 is a null) by the `steps` of their fields.

    `steps` has, for each field, its step, the null branch of its union, and its size if it is fixed.
    `found[field, row]` is the number, the bits of the float, or where the bytes begin; `sizes[field, row]` their
    size, -1 for a null. The span of a value that is not as it should be gets a begin of -2.
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
                found[field, row], sizes[field, row], at = field_of(
                    data, at, end, steps[field, 0], steps[field, 2]
                )
        if spans[row, 0] >= 0 and at != end:
            spans[row, 0] = -2


@compiled
def scan_decimals(data: Bytes, spans: Ints, words: Ints) -> int:
    """The whole numbers at `spans`, big-endian and signed, as two words each, the lower first. Answers the first
    row whose number has more than 16 bytes, -1 if there is none."""
    for row in range(len(spans)):
        at, end = spans[row, 0], spans[row, 1]
        if at < 0 or at == end:
            continue
        if end - at > 16:
            return row
        sign = -(data[at] >> 7 & 1)
        words[row, 0] = word_of(data, at, end, sign)
        words[row, 1] = word_of(data, at, end - 8, sign)
    return -1
