"""The record of a finished compaction in a stream's state."""

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
#: Number of compactions with separate tombstone times; tombstones of older ones expire with the next younger ones.
MAX_GENERATIONS = 16

#: Time of the compaction that first found the tombstones (milliseconds since 1970), and their offsets.
Generation = tuple[int, BitMap64]


@dataclass(frozen=True, slots=True)
class Compacted:
    """The ledger has all live messages before `horizon`; `live` has their offsets. Messages before `start` are
    trimmed. `tombstones`: the live messages without a value, oldest generation first. `own`: the topic itself is
    compacted, so readers must not see messages that the compaction dropped."""

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
                raise WireError(f"compaction record has unknown version {version}")
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
            raise WireError(f"compaction record is truncated: {bad}") from bad
        return cls(horizon, ledger_id, entries, live, start, size_bytes, done_ms, tuple(tombstones), bool(own))

    def mask(self, first: int, end: int) -> int:
        """Bit mask of the live offsets in [first, end); bit 0 is `first`."""
        mask = 0
        for offset in self.live & BitMap64(range(max(first, self.start), max(end, self.start))):
            mask |= 1 << (offset - first)
        return mask

    def tombstone_end_ms(self, tombstone_ms: int) -> int | None:
        """When the retention of its oldest tombstones ends; None if it has none."""
        return self.tombstones[0][0] + tombstone_ms if self.tombstones else None


def _bits(data: bytes) -> BitMap64:
    try:
        return BitMap64.deserialize(bytes(data))
    except (ValueError, IndexError, MemoryError, OverflowError) as bad:
        raise WireError(f"compaction bitmap is malformed: {bad}") from bad


def next_generations(
    before: Sequence[Generation], found: BitMap64, now_ms: int, tombstone_ms: int
) -> tuple[Generation, ...]:
    """The tombstones to keep: newly found ones, and earlier ones within their retention.

    `found`: all tombstones that are the latest message of their key."""
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
