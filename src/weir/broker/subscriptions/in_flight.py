"""Pieces: sets of in-flight messages of a batch that wait for a consumer or for its acknowledgement.

Also conversions between sets of offsets, runs and bits.
"""

from collections.abc import Iterator, Sequence

from pyroaring import BitMap64

from weir.broker.api.consumers import Delivery
from weir.model.batch import Batch, Run, bits_at, bits_of_runs, indices_of

#: The hash of a piece of a subscription without dispatch by key.
NO_HASH = -1
#: A piece with fewer than one in `_SPARSE` messages of its batch stores indices: a list costs about 64 bits each.
_SPARSE = 64


class Piece:
    """Messages of one batch: all of them (`mask` None) or those at the set bits. A sparse piece stores indices
    (`at`): a batch may have as many pieces as messages, and a mask for each would take memory and time quadratic
    in the batch size."""

    __slots__ = ("_at", "_mask", "base", "count", "hash")

    def __init__(
        self,
        base: int,
        count: int,
        mask: int | None = None,
        hash: int = NO_HASH,  # noqa: A002
        at: Sequence[int] | None = None,
    ) -> None:
        self.base = base
        self.count = count
        self.hash = hash
        self._mask = mask
        self._at = at

    @property
    def mask(self) -> int | None:
        return self._mask if self._at is None else bits_at(self._at, self.count)

    @mask.setter
    def mask(self, mask: int | None) -> None:
        self._mask, self._at = mask, None

    @property
    def at(self) -> Sequence[int] | None:
        """The indices of the messages of a sparse piece; None for a piece with a mask."""
        return self._at

    @property
    def end(self) -> int:
        """The offset after the batch."""
        return self.base + self.count

    @property
    def cost(self) -> int:
        """How many messages the piece has."""
        if self._at is not None:
            return len(self._at)
        return self.count if self._mask is None else self._mask.bit_count()

    def bits(self, first: int, end: int) -> int:
        """Messages of the piece within [first, end), as bits."""
        low, high = max(first - self.base, 0), min(end - self.base, self.count)
        if low >= high:
            return 0
        if self._at is not None:
            return bits_at([index for index in self._at if low <= index < high], self.count)
        window = ((1 << (high - low)) - 1) << low
        return window if self._mask is None else window & self._mask

    def without(self, bits: int) -> int:
        """Drop messages; return how many of them were in the piece."""
        mine = bits & self.whole
        self.mask = self.whole & ~mine
        return mine.bit_count()

    def split(self, flags: bytes) -> "Piece | None":
        """Of a piece with indices: split off the messages whose bit is set in `flags`; None if it has none of
        them."""
        indices = self._at or ()
        taken = [index for index in indices if index >> 3 < len(flags) and flags[index >> 3] >> (index & 7) & 1]
        if not taken:
            return None
        if len(taken) < len(indices):
            gone = dict.fromkeys(taken)
            self._at = [index for index in indices if index not in gone]
            return Piece(self.base, self.count, None, self.hash, taken)
        return self

    @property
    def whole(self) -> int:
        """Messages of the piece as bits, also if it has all of them."""
        mask = self.mask
        return (1 << self.count) - 1 if mask is None else mask

    def __repr__(self) -> str:
        return f"Piece({self.base}, {self.count}, {self.mask}, {self.hash})"


def piece_at(batch: Batch, at: Sequence[int] | None, hash: int) -> Piece:  # noqa: A002
    """Messages of a batch by their indices; None for all of them."""
    if at is None or len(at) == batch.count:
        return Piece(batch.base_offset, batch.count, None, hash)
    if len(at) * _SPARSE < batch.count:
        return Piece(batch.base_offset, batch.count, None, hash, at)
    return Piece(batch.base_offset, batch.count, bits_at(at, batch.count), hash)


def union_of(pieces: Sequence[Piece]) -> int | None:
    """The messages of disjoint pieces of one batch, as bits; None if they cover the batch."""
    if sum(piece.cost for piece in pieces) == pieces[0].count:
        return None
    few = [index for piece in pieces for index in piece.at or ()]
    bits = bits_at(few, pieces[0].count) if few else 0
    for piece in pieces:
        if piece.at is None:
            bits |= piece.whole
    return bits


class Tally:
    """A count of messages that several `Pieces` share."""

    __slots__ = ("messages",)

    def __init__(self) -> None:
        self.messages = 0


class Pieces:
    """Pieces in the order of their offsets, indexed by offset; a batch may have one piece per hash. `tally` adds
    their messages to those of other `Pieces`."""

    __slots__ = ("_at", "_bases", "_tally", "messages")

    def __init__(self, tally: Tally | None = None) -> None:
        self._tally = Tally() if tally is None else tally
        #: By the base offset of their batch, and then by their hash.
        self._at: dict[int, dict[int, Piece]] = {}
        self._bases = BitMap64()
        #: How many messages the pieces have together.
        self.messages = 0

    def _count(self, messages: int) -> None:
        self.messages += messages
        self._tally.messages += messages

    def __len__(self) -> int:
        """The number of distinct batches."""
        return len(self._at)

    def __iter__(self) -> Iterator[Piece]:
        """In the order of offsets; do not change the pieces during the iteration."""
        for base in self._bases:
            yield from self._at[base].values()

    def add(self, piece: Piece) -> None:
        """Add a piece; messages of the same batch and hash are merged into one piece."""
        self._count(piece.cost)
        there = self._at.get(piece.base)
        if there is None:
            self._at[piece.base] = {piece.hash: piece}
            self._bases.add(piece.base)
            return
        other = there.setdefault(piece.hash, piece)
        if other is not piece:
            mine, more = other.whole, piece.whole
            self._count(-(mine & more).bit_count())
            other.mask = None if mine | more == (1 << other.count) - 1 else mine | more

    def first(self) -> Piece | None:
        """The piece with the lowest offset."""
        return next(iter(self._at[self._bases.min()].values())) if self._at else None

    def of(self, base: int) -> list[Piece]:
        """The pieces of one batch."""
        return list(self._at.get(base, {}).values())

    def remove(self, piece: Piece) -> None:
        """Remove a piece that is present."""
        there = self._at[piece.base]
        del there[piece.hash]
        self._count(-piece.cost)
        if not there:
            del self._at[piece.base]
            self._bases.discard(piece.base)

    def pop_whole(self, first: int, end: int) -> Piece | None:
        """Remove and return the piece that is exactly this whole batch; None if no piece is. The fast path of most
        acknowledgements."""
        there = self._at.get(first)
        if there is None or len(there) != 1:
            return None
        (piece,) = there.values()
        if piece.base + piece.count != end or piece.cost != piece.count:
            return None
        self.remove(piece)
        return piece

    def overlapping(self, first: int, end: int) -> list[Piece]:
        """Pieces with messages in [first, end)."""
        return [piece for base in self._bases_in(first, end) for piece in self.of(base) if piece.bits(first, end)]

    def _bases_in(self, first: int, end: int) -> list[int]:
        """Base offsets of the batches that may have messages in [first, end)."""
        if not self._at or first >= end:
            return []
        below = self._bases.rank(first)
        base: int = self._bases[below - 1] if below else self._bases.min()
        found: list[int] = []
        while base < end:
            found.append(base)
            rank = self._bases.rank(base)
            if rank >= len(self._bases):
                break
            base = self._bases[rank]
        return found

    def cut(self, first: int, end: int) -> list[Piece]:
        """Remove the messages in [first, end); return them as pieces."""
        found: list[Piece] = []
        for base in self._bases_in(first, end):
            there = self._at[base]
            limit = next(iter(there.values())).end
            if first <= base and limit <= end:
                found += self._remove_batch(base)
            elif first < limit:
                low = max(first - base, 0)
                found += self.cut_bits(base, ((1 << (min(end, limit) - base - low)) - 1) << low)
        return found

    def _remove_batch(self, base: int) -> list[Piece]:
        """Remove all pieces of a batch."""
        taken = list(self._at.pop(base).values())
        self._bases.discard(base)
        self._count(-sum(piece.cost for piece in taken))
        return taken

    def cut_all(self, ranges: Sequence[Run]) -> list[Piece]:
        """Remove the messages of many ranges, in time linear in the ranges: ascending ranges of one batch are
        removed in one step."""
        if not self._at:
            return []
        found: list[Piece] = []
        at = 0
        while at < len(ranges):
            first, end = ranges[at]
            stop = at + 1
            base = self._base_at(first)
            limit = -1 if base is None else next(iter(self._at[base].values())).end
            while stop < len(ranges) and ranges[stop - 1][1] <= ranges[stop][0] and ranges[stop][1] <= limit:
                stop += 1
            if base is None or stop == at + 1 or end > limit:
                stop = at + 1
                found += self.cut(first, end)
            else:
                found += self.cut_bits(base, bits_of_runs(ranges[at:stop], base))
            at = stop
        return found

    def _base_at(self, offset: int) -> int | None:
        """Base offset of the last batch that begins at or before the offset."""
        below = self._bases.rank(offset)
        base: int | None = self._bases[below - 1] if below else None
        return base

    def cut_bits(self, base: int, mask: int | None) -> list[Piece]:
        """Remove these messages of one batch (None: all of them); return those that were present."""
        if base not in self._at:
            return []
        if mask is None:
            return self._remove_batch(base)
        flags = mask.to_bytes(-(-mask.bit_length() // 8), "little")
        found: list[Piece] = []
        for piece in self.of(base):
            if piece.at is None:
                bits = piece.whole & mask
                if bits:
                    found.append(self._cut(piece, bits))
                continue
            before = piece.cost
            taken = piece.split(flags)
            if taken is piece:
                self.remove(piece)
            elif taken is not None:
                self._count(piece.cost - before)
            if taken is not None:
                found.append(taken)
        return found

    def _cut(self, piece: Piece, bits: int) -> Piece:
        if bits == piece.whole:
            self.remove(piece)
            return piece
        self._count(-piece.without(bits))
        return Piece(piece.base, piece.count, bits, piece.hash)

    def clear(self) -> list[Piece]:
        """Remove and return all pieces."""
        all_of_them = list(self)
        self._at.clear()
        self._bases.clear()
        self._count(-self.messages)
        return all_of_them


def wanted_bits(indices: Sequence[int], count: int) -> int | None:
    """Convert ascending indices of messages to bits; None if they are the whole batch."""
    size = len(indices)
    if size == count:
        return None
    first = indices[0]
    if indices[-1] - first + 1 == size:
        return ((1 << size) - 1) << first
    return bits_at(indices, count)


def offsets_in(deliveries: Sequence[Delivery]) -> BitMap64:
    found = BitMap64()
    for delivery in deliveries:
        batch = delivery.batch
        if delivery.wanted is None:
            found.add_range(batch.base_offset, batch.end_offset)
        else:
            found.update([batch.base_offset + index for index in indices_of(delivery.wanted)])
    return found


def set_of(runs: Sequence[Run]) -> BitMap64:
    found = BitMap64()
    for first, end in runs:
        found.add_range(first, end)
    return found


def runs_in(offsets: BitMap64) -> Iterator[Run]:
    """Consecutive offsets as [first, end), ascending."""
    first = end = -1
    for offset in offsets:
        if offset != end:
            if end >= 0:
                yield first, end
            first = offset
        end = offset + 1
    if end >= 0:
        yield first, end
