"""How often each message of a queue was delivered before: per message, in bits rather than numbers.

A consumer that leaves may give a million messages back, each for the first time; one message may come back a
thousand times. Both are small as sets: the counts are sliced into binary digits, and each digit is the set of the
messages that have it.
"""

from collections.abc import Iterator, Sequence
from functools import reduce

from pyroaring import BitMap64

_DIGITS = 10
#: Counts go no higher.
MOST = (1 << _DIGITS) - 1


class Redeliveries:
    __slots__ = ("_any", "_digits")

    def __init__(self) -> None:
        #: At place n: what has the digit of 2^n in its count.
        self._digits: list[BitMap64] = []
        self._any = BitMap64()

    def __bool__(self) -> bool:
        return bool(self._digits)

    def of(self, offset: int) -> int:
        """How often it was delivered before."""
        if offset not in self._any:
            return 0
        return sum(1 << place for place, having in enumerate(self._digits) if offset in having)

    def groups(self, offsets: BitMap64) -> Iterator[tuple[int, BitMap64]]:
        """These by how often each was delivered before."""
        yield from _split(offsets, self._digits, len(self._digits) - 1, 0)

    def all(self) -> BitMap64:
        """What was delivered before."""
        return BitMap64(self._any)

    @property
    def digits(self) -> Sequence[BitMap64]:
        """The counts as they are kept: at place n what has the digit of 2^n."""
        return self._digits

    def restore(self, digits: Sequence[BitMap64]) -> None:
        """As they were kept."""
        self._digits = [BitMap64(having) for having in digits[:_DIGITS]]
        self._any = BitMap64().union(*self._digits) if self._digits else BitMap64()
        self._shrink()

    def any_in(self, first: int, end: int) -> bool:
        """Whether any of [first, end) was delivered before."""
        seen = self._any
        return bool(self._digits and seen.max() >= first and seen.next_set_bit(first) < end)

    def count(self, offsets: BitMap64) -> None:
        """These came back, once more each."""
        carry = offsets
        if len(self._digits) == _DIGITS:
            carry = carry - reduce(BitMap64.intersection, self._digits)
        self._any |= offsets
        for place, having in enumerate(self._digits):
            if not carry:
                return
            self._digits[place] = having ^ carry
            carry = having & carry
        if carry:
            self._digits.append(BitMap64(carry))

    def forget(self, first: int, end: int) -> None:
        """Those in [first, end) are done with."""
        self._any.remove_range(first, end)
        for having in self._digits:
            having.remove_range(first, end)
        self._shrink()

    def keep(self, offsets: BitMap64) -> None:
        """All others are done with."""
        self._any &= offsets
        for having in self._digits:
            having.intersection_update(offsets)
        self._shrink()

    def _shrink(self) -> None:
        while self._digits and not self._digits[-1]:
            self._digits.pop()

    def clear(self) -> None:
        self._digits.clear()
        self._any.clear()


def _split(
    offsets: BitMap64, digits: Sequence[BitMap64], place: int, count: int
) -> Iterator[tuple[int, BitMap64]]:
    if not offsets:
        return
    if place < 0:
        yield count, offsets
        return
    having = offsets & digits[place]
    yield from _split(offsets - having, digits, place - 1, count)
    yield from _split(having, digits, place - 1, count | 1 << place)
