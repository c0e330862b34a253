"""The Huffman code of header strings (RFC 7541, appendix B), decoded a byte at a time.

The code is canonical, so the lengths of its words say all of it. What a byte does in a state is worked out when it
first comes, and looked up from then on.
"""

from weir.model.errors import WireError

#: Of each symbol, in bits; the last is the end of the string, which never comes.
_LENGTHS = (
    13,
    23,
    28,
    28,
    28,
    28,
    28,
    28,
    28,
    24,
    30,
    28,
    28,
    30,
    28,
    28,
    28,
    28,
    28,
    28,
    28,
    28,
    30,
    28,
    28,
    28,
    28,
    28,
    28,
    28,
    28,
    28,
    6,
    10,
    10,
    12,
    13,
    6,
    8,
    11,
    10,
    10,
    8,
    11,
    8,
    6,
    6,
    6,
    5,
    5,
    5,
    6,
    6,
    6,
    6,
    6,
    6,
    6,
    7,
    8,
    15,
    6,
    12,
    10,
    13,
    6,
    7,
    7,
    7,
    7,
    7,
    7,
    7,
    7,
    7,
    7,
    7,
    7,
    7,
    7,
    7,
    7,
    7,
    7,
    7,
    7,
    7,
    7,
    8,
    7,
    8,
    13,
    19,
    13,
    14,
    6,
    15,
    5,
    6,
    5,
    6,
    5,
    6,
    6,
    6,
    5,
    7,
    7,
    6,
    6,
    6,
    5,
    6,
    7,
    6,
    5,
    5,
    6,
    7,
    7,
    7,
    7,
    7,
    15,
    11,
    14,
    13,
    28,
    20,
    22,
    20,
    20,
    22,
    22,
    22,
    23,
    22,
    23,
    23,
    23,
    23,
    23,
    24,
    23,
    24,
    24,
    22,
    23,
    24,
    23,
    23,
    23,
    23,
    21,
    22,
    23,
    22,
    23,
    23,
    24,
    22,
    21,
    20,
    22,
    22,
    23,
    23,
    21,
    23,
    22,
    22,
    24,
    21,
    22,
    23,
    23,
    21,
    21,
    22,
    21,
    23,
    22,
    23,
    23,
    20,
    22,
    22,
    22,
    23,
    22,
    22,
    23,
    26,
    26,
    20,
    19,
    22,
    23,
    22,
    25,
    26,
    26,
    26,
    27,
    27,
    26,
    24,
    25,
    19,
    21,
    26,
    27,
    27,
    26,
    27,
    24,
    21,
    21,
    26,
    26,
    28,
    27,
    27,
    27,
    20,
    24,
    20,
    21,
    22,
    21,
    21,
    23,
    22,
    22,
    25,
    25,
    24,
    24,
    26,
    23,
    26,
    27,
    26,
    26,
    27,
    27,
    27,
    27,
    27,
    28,
    27,
    27,
    27,
    27,
    27,
    26,
    30,
)
_END = 256
#: Padding is at most so many bits long.
_MOST_PADDING = 7

#: A place in the tree of words is the pair of those below it: a place, or a symbol as its negative less one.
_left: list[int] = [0]
_right: list[int] = [0]


def _grow() -> None:
    """Build the tree: words of one length count up, and go on in the next length."""
    word = last = 0
    for symbol in sorted(range(len(_LENGTHS)), key=lambda one: (_LENGTHS[one], one)):
        length = _LENGTHS[symbol]
        word <<= length - last
        last = length
        place = 0
        for bit in range(length - 1, -1, -1):
            side = _right if word >> bit & 1 else _left
            if not bit:
                side[place] = -1 - symbol
            elif side[place]:
                place = side[place]
            else:
                _left.append(0)
                _right.append(0)
                side[place] = len(_left) - 1
                place = side[place]
        word += 1


_grow()


def _may_end() -> frozenset[int]:
    """Where a string may end: behind a word, or behind up to seven bits that are all ones."""
    places, place = {0}, 0
    for _ in range(_MOST_PADDING):
        place = _right[place]
        places.add(place)
    return frozenset(places)


_ENDS = _may_end()
#: By place and byte: the place behind it and the symbols in it; None if the end of the string is in it.
_steps: dict[int, tuple[int, bytes] | None] = {}


def decode(data: bytes) -> bytes:
    """WireError if this is no such string."""
    place, out, steps = 0, [], _steps
    for byte in data:
        key = place << 8 | byte
        if key in steps:
            step = steps[key]
        else:
            step = steps[key] = _step(place, byte)
        if step is None:
            raise WireError("a header string has the end of strings within")
        place, found = step
        out.append(found)
    if place not in _ENDS:
        raise WireError("a header string ends in the middle of a symbol")
    return b"".join(out)


def _step(place: int, byte: int) -> tuple[int, bytes] | None:
    found = bytearray()
    for bit in range(7, -1, -1):
        place = (_right if byte >> bit & 1 else _left)[place]
        if place < 0:
            if place == -1 - _END:
                return None
            found.append(-1 - place)
            place = 0
    return place, bytes(found)
