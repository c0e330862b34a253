"""The compiled loop that reads protobuf messages without repeated or nested fields."""

from weir.spark.source.kernels import Bytes, Ints, compiled, inlined

#: How a field comes: protobuf's wire types.
VARINT, FIXED64, SIZED, FIXED32 = 0, 1, 2, 5


@inlined
def varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """64 bits, the highest as a sign, and the place after them; that is -1 if there are none before `end`."""
    low = middle = high = 0
    for index in range(10):
        if at >= end:
            return 0, -1
        byte = data[at] & 0xFF
        at += 1
        if index < 4:
            low |= (byte & 0x7F) << (7 * index)
        elif index < 8:
            middle |= (byte & 0x7F) << (7 * index - 28)
        else:
            high |= (byte & 0x7F) << (7 * index - 56)
        if byte < 0x80:
            high &= 0xFF
            return ((high - 256 if high > 127 else high) << 56) | (middle << 28) | low, at
    return 0, -1


@inlined
def fixed(data: Bytes, at: int, size: int) -> int:
    """A number of `size` bytes, little-endian; of eight, the highest bit is a sign."""
    found = 0
    for index in range(size):
        byte = data[at + index] & 0xFF
        found |= (byte - 256 if index == 7 and byte > 127 else byte) << (8 * index)
    return found


@inlined
def slot_of(fields: Ints, number: int, wire: int, guess: int) -> int:
    """Which field has this number and wire type, -1 if none; fields mostly come in their order."""
    if guess < len(fields) and fields[guess, 0] == number:
        return guess if fields[guess, 1] == wire else -1
    for index in range(len(fields)):
        if fields[index, 0] == number:
            return index if fields[index, 1] == wire else -1
    return -1


@compiled
def scan_proto(data: Bytes, spans: Ints, fields: Ints, found: Ints, sizes: Ints) -> int:
    """Read the messages at `spans` (begin and end; a begin of -1 is a null). `fields` has numbers and wire types.

    `found[field, row]` is the number, the bits of the float, or where the bytes begin; `sizes[field, row]` their
    size, -1 where the field is not there. Answers the first row that has something else in it, -1 if none has.
    """
    for row in range(len(spans)):
        at, end = spans[row, 0], spans[row, 1]
        for field in range(len(fields)):
            found[field, row] = 0
            sizes[field, row] = -1
        guess = 0
        while 0 <= at < end:
            began = at
            tag, at = varint(data, at, end)
            number, wire = tag >> 3, tag & 7
            if at < 0 or at - began > 5 or number <= 0 or number > 0x1FFFFFFF:
                return row
            value, size = 0, 0
            if wire == VARINT:
                value, at = varint(data, at, end)
            elif wire == SIZED:
                began = at
                size, at = varint(data, at, end)
                if at < 0 or at - began > 5 or size < 0 or size > end - at:
                    return row
                value = at
                at += size
            elif wire in (FIXED64, FIXED32):
                size = 8 if wire == FIXED64 else 4
                if size > end - at:
                    return row
                value = fixed(data, at, size)
                at += size
            else:  # groups, and what is none
                return row
            if at < 0:
                return row
            slot = slot_of(fields, number, wire, guess)
            if slot >= 0:
                found[slot, row] = value
                sizes[slot, row] = size
                guess = slot + 1
    return -1
