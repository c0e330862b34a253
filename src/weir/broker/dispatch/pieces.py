"""Pieces of the log on their way: batches, or what is left of them, that wait for a consumer or for its answer."""

from collections.abc import Iterator, Sequence

from pyroaring import BitMap64

from weir.model.batch import Batch
from weir.model.bits import Run, bits_of_runs

#: The hash of a piece whose subscription has no use for keys.
NO_HASH = -1


class Piece:
    """Messages of one batch: all of them (`mask` None) or those whose bits are set."""

    __slots__ = ("base", "count", "hash", "mask")

    def __init__(self, base: int, count: int, mask: int | None = None, hash: int = NO_HASH) -> None:  # noqa: A002
        self.base = base
        self.count = count
        self.mask = mask
        self.hash = hash

    @property
    def end(self) -> int:
        """The offset after the batch."""
        return self.base + self.count

    @property
    def cost(self) -> int:
        """How many messages it has."""
        return self.count if self.mask is None else self.mask.bit_count()

    def bits(self, first: int, end: int) -> int:
        """Its messages within [first, end), as bits."""
        low, high = max(first - self.base, 0), min(end - self.base, self.count)
        if low >= high:
            return 0
        window = ((1 << (high - low)) - 1) << low
        return window if self.mask is None else window & self.mask

    def without(self, bits: int) -> int:
        """Drop messages; answers how many it had of them."""
        mine = bits & self.whole
        self.mask = self.whole & ~mine
        return mine.bit_count()

    @property
    def whole(self) -> int:
        """Its messages as bits, even if it has all."""
        return (1 << self.count) - 1 if self.mask is None else self.mask

    def __repr__(self) -> str:
        return f"Piece({self.base}, {self.count}, {self.mask}, {self.hash})"


def unacked_piece(batch: Batch, mask: int) -> Piece:
    """What `mask` leaves of a batch."""
    return Piece(batch.base_offset, batch.count, None if mask == (1 << batch.count) - 1 else mask)


class Pieces:
    """Pieces in the order of their offsets, found by any offset in them; a batch may have one per hash."""

    __slots__ = ("_at", "_bases", "messages")

    def __init__(self) -> None:
        self._at: dict[int, list[Piece]] = {}
        self._bases = BitMap64()
        #: How many messages all of them have.
        self.messages = 0

    def __len__(self) -> int:
        return len(self._at)

    def __iter__(self) -> Iterator[Piece]:
        """In the order of offsets; not to be changed meanwhile."""
        for base in self._bases:
            yield from self._at[base]

    def add(self, piece: Piece) -> None:
        """Put a piece in; messages of the same batch and hash become one piece."""
        self.messages += piece.cost
        there = self._at.get(piece.base)
        if there is None:
            self._at[piece.base] = [piece]
            self._bases.add(piece.base)
            return
        for other in there:
            if other.hash == piece.hash:
                self.messages -= (other.whole & piece.whole).bit_count()
                mask = other.whole | piece.whole
                other.mask = None if mask == (1 << other.count) - 1 else mask
                return
        there.append(piece)

    def first(self) -> Piece | None:
        """The piece with the lowest offset."""
        return self._at[self._bases.min()][0] if self._at else None

    def remove(self, piece: Piece) -> None:
        """Take out a piece that is in."""
        there = self._at[piece.base]
        there.remove(piece)
        self.messages -= piece.cost
        if not there:
            del self._at[piece.base]
            self._bases.discard(piece.base)

    def pop_whole(self, first: int, end: int) -> Piece | None:
        """Take out the piece that is exactly this whole batch, if there is one: the path of nearly every
        acknowledgement."""
        there = self._at.get(first)
        if there is None or len(there) != 1:
            return None
        piece = there[0]
        if piece.mask is not None or piece.base + piece.count != end:
            return None
        del self._at[first]
        self._bases.discard(first)
        self.messages -= piece.count
        return piece

    def overlapping(self, first: int, end: int) -> list[Piece]:
        """Pieces with messages in [first, end)."""
        if not self._at:
            return []
        below = self._bases.rank(first)
        base: int = self._bases[below - 1] if below else self._bases.min()
        found: list[Piece] = []
        while base < end:
            found += [piece for piece in self._at[base] if piece.bits(first, end)]
            rank = self._bases.rank(base)
            if rank >= len(self._bases):
                break
            base = self._bases[rank]
        return found

    def cut(self, first: int, end: int) -> list[Piece]:
        """Take the messages in [first, end) out; answers them as pieces."""
        return [self._cut(piece, piece.bits(first, end)) for piece in self.overlapping(first, end)]

    def cut_all(self, ranges: Sequence[Run]) -> list[Piece]:
        """The same for many, in time linear in what they name: those of one batch, in ascending order, are taken
        out at once."""
        if not self._at:
            return []
        found: list[Piece] = []
        at = 0
        while at < len(ranges):
            first, end = ranges[at]
            stop = at + 1
            base = self._base_at(first)
            limit = -1 if base is None else self._at[base][0].end
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
        """Of the last batch that begins at or before the offset."""
        below = self._bases.rank(offset)
        base: int | None = self._bases[below - 1] if below else None
        return base

    def cut_bits(self, base: int, mask: int | None) -> list[Piece]:
        """Take these messages of one batch out (None: all of them); answers those that were in."""
        there = [(piece, piece.whole if mask is None else piece.whole & mask) for piece in self._at.get(base, ())]
        return [self._cut(piece, bits) for piece, bits in there if bits]

    def _cut(self, piece: Piece, bits: int) -> Piece:
        if bits == piece.whole:
            self.remove(piece)
            return piece
        self.messages -= piece.without(bits)
        return Piece(piece.base, piece.count, bits, piece.hash)

    def clear(self) -> list[Piece]:
        """Take all out."""
        all_of_them = list(self)
        self._at.clear()
        self._bases.clear()
        self.messages = 0
        return all_of_them
