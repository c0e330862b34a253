"""Messages of a batch as the bits of one number, and as runs of neighbours; both ways in time linear in the batch.

By way of text: shifting a number of 100,000 bits once per bit takes time with the square of its length, which a
client's acknowledgement of every other message would cost the whole broker.
"""

import re
from collections.abc import Iterable

#: [first, end).
Run = tuple[int, int]

_ONES = re.compile("1+")


def runs_of(bits: int, base: int = 0) -> list[Run]:
    """The runs of bits that are set, `base` added to both ends; in ascending order."""
    return [(base + run.start(), base + run.end()) for run in _ONES.finditer(f"{bits:b}"[::-1])]


def bits_of_runs(runs: Iterable[Run], base: int = 0) -> int:
    """The number with these runs of bits set, counted from `base`; they ascend, and do not overlap."""
    parts: list[str] = []
    at = base
    for first, end in runs:
        parts.append("0" * (first - at))
        parts.append("1" * (end - first))
        at = end
    return int("".join(parts)[::-1] or "0", 2)


def bits_at(indices: Iterable[int], count: int) -> int:
    """The number with these bits set, of `count` that there are."""
    digits = bytearray(b"0") * count
    for index in indices:
        digits[index] = 0x31
    digits.reverse()
    return int(digits or b"0", 2)


def indices_of(bits: int) -> list[int]:
    """Which bits are set, in ascending order."""
    return [index for first, end in runs_of(bits) for index in range(first, end)]
