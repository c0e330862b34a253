"""Who gets which key: pure functions from hashes to the consumers of a key-shared subscription.

A key's hash is Pulsar's: murmur3 (x86, 32 bits) without the sign, modulo 65536. Auto-split puts each consumer at
many points of a ring of hashes, so that one that comes or goes moves only its own share. Sticky consumers name
their ranges.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from weir.model.batch import Batch
from weir.model.bits import indices_of
from weir.model.errors import HashRangesError
from weir.wire.formats import Keys

HASHES = 65536
#: Points of the ring per consumer: enough for shares within some ten per cent of each other.
POINTS = 100

#: The keys of a batch: one for all of its messages, or one for each; None where there is no key.
KeysOf = Callable[[Batch], Keys]

_M32 = 0xFFFFFFFF


@lru_cache(maxsize=65536)
def hash_of(key: bytes) -> int:
    """The place of a key on the ring."""
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


class Ring(NamedTuple):
    """Points in ascending order and the consumer at each; a hash belongs to the first point at or after it."""

    points: tuple[int, ...] = ()
    owners: tuple[int, ...] = ()

    def owner(self, key_hash: int) -> int | None:
        if not self.points:
            return None
        at = bisect_left(self.points, key_hash)
        return self.owners[at if at < len(self.points) else 0]


def auto_split(consumers: Sequence[tuple[int, str]]) -> Ring:
    """The ring of these consumers: their numbers, and names that differ."""
    points: dict[int, int] = {}
    for number, name in sorted(consumers, key=lambda consumer: consumer[1]):
        for point in range(POINTS):
            points.setdefault(hash_of(f"{name}#{point}".encode()), number)
    ordered = sorted(points.items())
    return Ring(tuple(point for point, _ in ordered), tuple(number for _, number in ordered))


class Ranges(NamedTuple):
    """Sticky: ranges in ascending order, both ends included; a hash between them belongs to nobody."""

    starts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    owners: tuple[int, ...] = ()

    def owner(self, key_hash: int) -> int | None:
        at = bisect_left(self.ends, key_hash)
        return self.owners[at] if at < len(self.ends) and self.starts[at] <= key_hash else None


def sticky(consumers: Sequence[tuple[int, Sequence[tuple[int, int]]]]) -> Ranges:
    """The ranges of these consumers; HashRangesError if they are malformed or overlap."""
    whole = sorted((start, end, number) for number, ranges in consumers for start, end in ranges)
    for start, end, _ in whole:
        if not 0 <= start <= end < HASHES:
            raise HashRangesError(f"[{start}, {end}] is not a range of hashes", hint=f"0 to {HASHES - 1} are")
    for (_, end, _), (start, other_end, _) in pairwise(whole):
        if start <= end:
            raise HashRangesError(f"the range [{start}, {other_end}] is taken in part by another consumer")
    return Ranges(tuple(w[0] for w in whole), tuple(w[1] for w in whole), tuple(w[2] for w in whole))


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
