"""A finished compaction, as a stream's state keeps it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError

from pyroaring import BitMap64

from weir.model.errors import WireError
from weir.model.ids import LedgerId

_FIRST = Struct("<BqqQ")
_SECOND = Struct("<qQqBB")
_GENERATION = Struct("<qI")
_VERSION = 2
#: Compactions whose tombstones are told apart; those of older ones stay as long as the next younger ones.
MAX_GENERATIONS = 16

#: Tombstones and when the compaction was that first found them (milliseconds since 1970).
Generation = tuple[int, BitMap64]


@dataclass(frozen=True, slots=True)
class Compacted:
    """Everything before `horizon` is in the ledger, as far as it is live: a bit per offset. What is before `start`
    is gone altogether. `tombstones`: which of the live ones only say that a key is gone, the oldest first. `own`:
    the topic compacts itself, and nobody is to see what the compaction took away."""

    horizon: int = 0
    ledger_id: LedgerId | None = None
    entries: int = 0
    live: BitMap64 = field(default_factory=BitMap64)
    start: int = 0
    size_bytes: int = 0
    done_ms: int = 0
    tombstones: tuple[Generation, ...] = ()
    own: bool = False

    def to_bytes(self) -> bytes:
        ledger = -1 if self.ledger_id is None else self.ledger_id
        pieces = [
            _FIRST.pack(_VERSION, self.horizon, ledger, self.entries),
            _SECOND.pack(self.start, self.size_bytes, self.done_ms, self.own, len(self.tombstones)),
        ]
        for found_ms, offsets in self.tombstones:
            data = offsets.serialize()
            pieces += [_GENERATION.pack(found_ms, len(data)), data]
        return b"".join([*pieces, self.live.serialize()])

    @classmethod
    def from_bytes(cls, data: bytes) -> "Compacted":
        try:
            version, horizon, ledger, entries = _FIRST.unpack_from(data)
            ledger_id = None if ledger < 0 else LedgerId(ledger)
            if version == 1:
                return cls(horizon, ledger_id, entries, _bits(data[_FIRST.size :]))
            if version != _VERSION:
                raise WireError(f"a compaction's record has unknown version {version}")
            start, size_bytes, done_ms, own, count = _SECOND.unpack_from(data, _FIRST.size)
            place = _FIRST.size + _SECOND.size
            tombstones = []
            for _ in range(count):
                found_ms, length = _GENERATION.unpack_from(data, place)
                place += _GENERATION.size
                tombstones.append((found_ms, _bits(data[place : place + length])))
                place += length
            live = _bits(data[place:])
        except StructError as bad:
            raise WireError(f"a compaction's record ends too early: {bad}") from bad
        return cls(horizon, ledger_id, entries, live, start, size_bytes, done_ms, tuple(tombstones), bool(own))

    def mask(self, first: int, end: int) -> int:
        """The live ones of these offsets, as bits from the first on."""
        mask = 0
        for offset in self.live & BitMap64(range(max(first, self.start), max(end, self.start))):
            mask |= 1 << (offset - first)
        return mask

    def tombstone_end_ms(self, tombstone_ms: int) -> int | None:
        """When the first of its tombstones have been seen for long enough; None if it has none."""
        return self.tombstones[0][0] + tombstone_ms if self.tombstones else None


def _bits(data: bytes) -> BitMap64:
    try:
        return BitMap64.deserialize(bytes(data))
    except (ValueError, IndexError, MemoryError, OverflowError) as bad:
        raise WireError(f"a compaction's bitmap is malformed: {bad}") from bad


def next_generations(
    before: Sequence[Generation], found: BitMap64, now_ms: int, tombstone_ms: int
) -> tuple[Generation, ...]:
    """Which tombstones stay: those found just now, and those of before that were not seen for long enough.

    `found`: every tombstone that is its key's latest message."""
    kept = []
    known = BitMap64()
    for found_ms, offsets in before:
        known |= offsets
        left = offsets & found
        if found_ms + tombstone_ms > now_ms and left:
            kept.append((found_ms, left))
    fresh = found - known
    if fresh and tombstone_ms > 0:
        kept.append((now_ms, fresh))
    while len(kept) > MAX_GENERATIONS:
        kept[:2] = [(kept[1][0], kept[0][1] | kept[1][1])]
    return tuple(kept)
