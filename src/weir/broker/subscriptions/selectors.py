"""Consumer selection: pure functions that assign keys, batches and messages to the consumers of a subscription.

A key's hash is Pulsar's: murmur3 (x86, 32 bits) without the sign, modulo 65536. Auto-split places each consumer at
many points of a hash ring, so that a consumer that joins or leaves moves only its own keys. Sticky consumers name
their ranges. A consumer that joins or leaves changes only its own points or ranges: the cost is logarithmic in the
number of consumers.

For single-active and shared subscriptions a piece is a batch or the rest of one, and its cost is its number of
messages. A seat is a consumer as the decision sees it. A piece may exceed the remaining credit, since batches are
delivered whole; a seat without credit gets nothing.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from pyroaring import BitMap

from weir.model.batch import Batch, indices_of
from weir.model.errors import HashRangesError
from weir.wire.formats.format import Keys


class Seat(NamedTuple):
    """A consumer as the decision sees it. Lower priority numbers are served first."""

    name: str
    priority: int
    credit: int


def take_whole(costs: Sequence[int], credit: int) -> int:
    """How many of the leading pieces one consumer with this credit gets."""
    taken = 0
    for cost in costs:
        if credit <= 0:
            break
        credit -= cost
        taken += 1
    return taken


def share_out(costs: Sequence[int], seats: Sequence[Seat], turn: int) -> tuple[list[int], int]:
    """For each piece, from the first on, the seat that gets it; shorter than the pieces when credit runs out.

    Seats of the best priority that have credit take turns, piece by piece; those of the next priority are only
    served when the better ones have none left. `turn` is the seat after the one that was served last; the second
    result is the next turn.
    """
    if len(seats) == 1:
        return [0] * take_whole(costs, seats[0].credit), 0
    credit = [seat.credit for seat in seats]
    levels = _levels(seats)
    chosen: list[int] = []
    for cost in costs:
        while levels and not levels[0]:
            levels.pop(0)
        if not levels:
            break
        ring = levels[0]
        at = next((i for i, seat in enumerate(ring) if seat >= turn), 0)
        seat = ring[at]
        credit[seat] -= cost
        if credit[seat] <= 0:
            del ring[at]
        chosen.append(seat)
        turn = (seat + 1) % len(seats)
    return chosen, turn


def deal(count: int, seats: Sequence[Seat], turn: int) -> tuple[list[tuple[int, range]], int]:
    """Deal messages one by one, exactly as far as credit goes: which seat gets which of them, by their places.

    Seats of the best priority that have credit take turns, message by message, from the seat `turn` on; whole
    rounds are dealt at once. The second result is the next turn.
    """
    if len(seats) == 1:
        count = min(count, seats[0].credit)
        return ([(0, range(count))] if count > 0 else []), 0
    credit = [seat.credit for seat in seats]
    dealt: list[tuple[int, range]] = []
    at = 0
    for ring in _levels(seats):
        while ring and at < count:
            start = next((i for i, seat in enumerate(ring) if seat >= turn), 0)
            line = ring[start:] + ring[:start]
            rounds = min(*(credit[seat] for seat in line), (count - at) // len(line))
            if not rounds:
                line, rounds = line[: count - at], 1
            stop = at + rounds * len(line)
            for place, seat in enumerate(line):
                dealt.append((seat, range(at + place, stop, len(line))))
                credit[seat] -= rounds
            at, turn = stop, (line[-1] + 1) % len(seats)
            ring = [seat for seat in ring if credit[seat] > 0]
    return dealt, turn


def _levels(seats: Sequence[Seat]) -> list[list[int]]:
    """The seats that have credit, by priority and then by place."""
    levels: dict[int, list[int]] = {}
    for place, seat in enumerate(seats):
        if seat.credit > 0:
            levels.setdefault(seat.priority, []).append(place)
    return [levels[priority] for priority in sorted(levels)]


HASHES = 65536
#: Points of the ring per consumer: enough to divide the keys evenly within some ten per cent.
POINTS = 100

#: The keys of a batch: one for all of its messages, or one for each; None for a message without a key.
KeysOf = Callable[[Batch], Keys]

_M32 = 0xFFFFFFFF
#: Enough bits for the numbers of a subscription's consumers.
_NUMBER_BITS = 48
_NUMBER = (1 << _NUMBER_BITS) - 1


@lru_cache(maxsize=65536)
def hash_of(key: bytes) -> int:
    """The position of a key on the ring."""
    return (murmur3_32(key) & 0x7FFFFFFF) % HASHES


def murmur3_32(data: bytes) -> int:
    """MurmurHash3, x86, 32 bits, seed 0."""
    h = 0
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        h ^= _scrambled(int.from_bytes(data[at : at + 4], "little"))
        h = ((h << 13) | (h >> 19)) & _M32
        h = (h * 5 + 0xE6546B64) & _M32
    if whole < len(data):
        h ^= _scrambled(int.from_bytes(data[whole:], "little"))
    h ^= len(data)
    h ^= h >> 16
    h = (h * 0x85EBCA6B) & _M32
    h ^= h >> 13
    h = (h * 0xC2B2AE35) & _M32
    return h ^ (h >> 16)


def _scrambled(k: int) -> int:
    k = (k * 0xCC9E2D51) & _M32
    k = ((k << 15) | (k >> 17)) & _M32
    return (k * 0x1B873593) & _M32


#: Hashes from the first to the last, both included.
HashRange = tuple[int, int]


class Moved(NamedTuple):
    """The hashes that a consumer owns from now on, and the consumers that owned some of them before."""

    ranges: list[HashRange]
    owners: Collection[int] = ()


class KeyMap(Protocol):
    """Maps each hash to the number of the consumer that owns it."""

    def owner(self, key_hash: int) -> int | None:
        """The owner of the hash; None if no consumer owns it."""

    def add(self, number: int, name: str, ranges: Sequence[HashRange]) -> Moved:
        """Raises HashRangesError, without a change, if the ranges conflict."""

    def remove(self, number: int) -> list[HashRange]:
        """Remove a consumer; return the hashes that it owned."""


class Ring:
    """Points, each of one consumer; a hash belongs to the first point at or after it. Consumers of the same name
    have different points."""

    def __init__(self) -> None:
        self._points = BitMap()
        #: The claims of consumers to a point, in ascending order; the first one owns it. The lower bits are the
        #: consumer's number.
        self._claims: dict[int, list[int]] = {}
        #: Of each consumer: its name, and which of the consumers of that name it is, from 1 on.
        self._names: dict[int, tuple[str, int]] = {}
        self._used: dict[str, BitMap] = {}

    def owner(self, key_hash: int) -> int | None:
        points = self._points
        if not points:
            return None
        point = points.next_set_bit(key_hash) if key_hash <= points.max() else points.min()
        return self._claims[point][0] & _NUMBER

    def add(self, number: int, name: str, ranges: Sequence[HashRange] = ()) -> Moved:
        used = self._used.setdefault(name, BitMap())
        nth = _lowest_missing(used)
        used.add(nth)
        self._names[number] = (name, nth)
        claims = _claims_of(name, nth, number)
        former = {owner: None for point in claims if (owner := self.owner(point)) is not None}
        for point, claim in claims.items():
            there = self._claims.get(point)
            if there is None:
                self._claims[point] = [claim]
                self._points.add(point)
            else:
                insort(there, claim)
        return Moved(self._ranges(claims), former)

    def remove(self, number: int) -> list[HashRange]:
        name, nth = self._names.pop(number)
        used = self._used[name]
        used.discard(nth)
        if not used:
            del self._used[name]
        claims = _claims_of(name, nth, number)
        ranges = self._ranges(claims)
        for point, claim in claims.items():
            there = self._claims[point]
            del there[bisect_left(there, claim)]
            if not there:
                del self._claims[point]
                self._points.discard(point)
        return ranges

    def _ranges(self, claims: dict[int, int]) -> list[HashRange]:
        """The hashes of those of the claimed points that the consumer owns."""
        points = self._points
        found: list[HashRange] = []
        for point, claim in claims.items():
            if self._claims[point][0] != claim:
                continue
            below = points.rank(point) - 1
            if below:
                found.append((points[below - 1] + 1, point))
            else:  # the lowest point also owns the hashes above the highest one
                found.append((0, point))
                if points.max() < HASHES - 1:
                    found.append((points.max() + 1, HASHES - 1))
        return found


def _claims_of(name: str, nth: int, number: int) -> dict[int, int]:
    """The points of a consumer, and its claim to each: the order of claims differs from point to point, so that
    among thousands of consumers each owns some points."""
    seed = murmur3_32(f"{nth}/{name}".encode())
    claims: dict[int, int] = {}
    for at in range(POINTS):
        mixed = (seed + at * 0x9E3779B9) & _M32
        mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & _M32
        mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & _M32
        mixed ^= mixed >> 16
        claims[mixed % HASHES] = (mixed // HASHES) << _NUMBER_BITS | number
    return claims


def _lowest_missing(used: BitMap) -> int:
    """The lowest number from 1 on that is not in use."""
    low, high = 0, len(used)
    while low < high:  # `low` numbers from 1 on are in use
        middle = (low + high + 1) // 2
        if used[middle - 1] == middle:
            low = middle
        else:
            high = middle - 1
    return low + 1


class Ranges:
    """Sticky ranges: each consumer names its ranges; no consumer owns a hash outside of them."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        #: By the start of the range.
        self._at: dict[int, tuple[int, int]] = {}
        self._of: dict[int, list[HashRange]] = {}

    def owner(self, key_hash: int) -> int | None:
        at = bisect_left(self._starts, key_hash + 1)
        if not at:
            return None
        last, number = self._at[self._starts[at - 1]]
        return number if key_hash <= last else None

    def add(self, number: int, name: str, ranges: Sequence[HashRange]) -> Moved:
        self._of[number] = []
        try:
            for first, last in ranges:
                self._add(number, first, last)
        except HashRangesError:
            self.remove(number)
            raise
        return Moved(list(self._of[number]))

    def _add(self, number: int, first: int, last: int) -> None:
        if not 0 <= first <= last < HASHES:
            raise HashRangesError(
                f"[{first}, {last}] is not a valid hash range", hint=f"use hashes from 0 to {HASHES - 1}"
            )
        at = bisect_left(self._starts, first)
        before = self._at[self._starts[at - 1]][0] if at else -1
        after = self._starts[at] if at < len(self._starts) else HASHES
        if before >= first or after <= last:
            raise HashRangesError(f"the range [{first}, {last}] overlaps a range of another consumer")
        self._starts.insert(at, first)
        self._at[first] = (last, number)
        self._of[number].append((first, last))

    def remove(self, number: int) -> list[HashRange]:
        ranges = self._of.pop(number)
        for first, _ in ranges:
            del self._starts[bisect_left(self._starts, first)]
            del self._at[first]
        return ranges


#: The indices of a hash's messages in a batch; None for all of them.
Indices = list[int] | None


def split_by_hash(keys: "bytes | Sequence[bytes | None] | None", wanted: int | None) -> list[tuple[int, Indices]]:
    """The hashes in a batch, and which of its wanted messages each has; in the order of messages. Takes time
    linear in the batch, however many hashes it has."""
    if keys is None or isinstance(keys, bytes):
        return [(hash_of(keys or b""), None if wanted is None else indices_of(wanted))]
    found: dict[int, list[int]] = {}
    for index in range(len(keys)) if wanted is None else indices_of(wanted):
        found.setdefault(hash_of(keys[index] or b""), []).append(index)
    return [(key_hash, None if len(at) == len(keys) else at) for key_hash, at in found.items()]
