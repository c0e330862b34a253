"""A simulated file's bytes: what readers see, and what would be left of it after power loss."""

from random import Random

from weir.model.ids import Buffer

#: The unit in which a disk keeps or loses what was not synced.
SECTOR_BYTES = 512
#: Of a sector rewritten many times since the last sync, the oldest and the latest few contents may survive.
_VERSIONS = 4


class Inode:
    """A file's content as the page cache has it, with enough of the past to lose what was not synced.

    `_data` holds the bytes up to the highest one ever written; from there to `size` the file reads as zeros, so
    a preallocated file costs nothing. `_dirty` maps each sector written since the last sync to its earlier
    contents, the durable one first. `_forsaken` are sectors whose sync failed and which the cache wrongly
    believes clean, with their durable content: later syncs do not save them (as Linux does, "fsyncgate").
    """

    __slots__ = ("_data", "_dirty", "_durable_size", "_forsaken", "number", "size")

    def __init__(self, number: int) -> None:
        self.number = number
        self.size = 0
        self._data = bytearray()
        self._durable_size = 0
        self._dirty: dict[int, list[bytes]] = {}
        self._forsaken: dict[int, bytes] = {}

    @property
    def unsynced(self) -> bool:
        """Whether power loss could change the content or the size."""
        return bool(self._dirty or self._forsaken) or self.size != self._durable_size

    def read(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self.size)
        if offset >= end:
            return b""
        data = bytes(self._data[offset:end])
        return data + bytes(end - offset - len(data))

    def write(self, offset: int, data: Buffer) -> None:
        end = offset + len(data)
        if end == offset:
            return
        self._remember(offset // SECTOR_BYTES, (end - 1) // SECTOR_BYTES)
        if len(self._data) < offset:
            self._data.extend(bytes(offset - len(self._data)))
        self._data[offset:end] = data
        self.size = max(self.size, end)

    def resize(self, size: int) -> None:
        if size < len(self._data):
            self._remember(size // SECTOR_BYTES, (len(self._data) - 1) // SECTOR_BYTES)
            del self._data[size:]
        self.size = size

    def flip(self, offset: int, bit: int) -> None:
        """Rot: change one bit for good."""
        if len(self._data) <= offset < self.size:
            self._data.extend(bytes(offset + 1 - len(self._data)))
        self._data[offset] ^= 1 << bit

    def sync(self) -> None:
        """Everything written so far survives, except what an earlier failed sync gave up."""
        self._dirty.clear()
        self._durable_size = self.size

    def fail_sync(self, rng: Random) -> None:
        """A sync that failed: each unsynced sector is still dirty, or gone, or gone but still in the cache."""
        for sector in sorted(self._dirty):
            fate = rng.randrange(3)
            if fate == 0:
                continue
            durable = self._dirty.pop(sector)[0]
            if fate == 1:
                self._forsaken[sector] = durable
            else:
                self._put(sector, durable)

    def lose_power(self, rng: Random, keep: float) -> None:
        """Decide, sector by sector, what of the unsynced writes reached the platter; `keep` is the chance."""
        for sector in sorted(self._dirty):
            if rng.random() >= keep:
                versions = self._dirty[sector]
                self._put(sector, versions[0] if rng.random() < 0.8 else rng.choice(versions))
        for sector in sorted(self._forsaken):
            self._put(sector, self._forsaken[sector])
        self._settle_size(rng, keep)
        self._dirty.clear()
        self._forsaken.clear()

    def _settle_size(self, rng: Random, keep: float) -> None:
        if self.size != self._durable_size and rng.random() >= keep:
            low, high = sorted((self.size, self._durable_size))
            self.size = self._durable_size if rng.random() < 0.5 else rng.randint(low, high)
        del self._data[self.size :]
        self._durable_size = self.size

    def _remember(self, first: int, last: int) -> None:
        """Note the content of sectors that are about to change."""
        dirty, data = self._dirty, self._data
        for sector in range(first, last + 1):
            start = sector * SECTOR_BYTES
            before = bytes(data[start : start + SECTOR_BYTES]) if start < len(data) else b""
            versions = dirty.get(sector)
            if versions is None:
                forsaken = self._forsaken.pop(sector, None) if self._forsaken else None
                dirty[sector] = [before] if forsaken is None else [forsaken, before]
            elif len(versions) < _VERSIONS:
                versions.append(before)
            else:
                versions[-1] = before

    def _put(self, sector: int, content: bytes) -> None:
        """Replace a sector, zeros after the end of `content`."""
        start = sector * SECTOR_BYTES
        if len(self._data) < start:
            self._data.extend(bytes(start - len(self._data)))
        self._data[start : start + SECTOR_BYTES] = content.ljust(SECTOR_BYTES, b"\0")
