"""Ledgers of which an accepted loss may have taken entries or the fence, though other bookies have copies.

A bookie must not deny an entry that it once acknowledged: a recovery would believe it and cut the ledger short. So
of such a ledger it denies nothing, but says that what is absent is damaged, takes no adds of the writer, and is
filled up by repair; then the doubt ends (`weir.server.doubts`).
"""

from collections.abc import Awaitable, Callable, Collection

from weir.bookie.layout import Layout
from weir.bookie.small_files import read_small, write_small
from weir.model.errors import BookieError, EntryInDoubtError, FileMissingError, JournalCorruptError, WireError
from weir.model.ids import LedgerId
from weir.runtime.interfaces import Disk
from weir.wire.doubtful import decode_doubtful, encode_doubtful

#: Tells which ledgers that count on this bookie are on others as well.
Copies = Callable[[], Awaitable[Collection[LedgerId]]]


async def no_copies() -> Collection[LedgerId]:
    """For a bookie that is the only one."""
    return ()


class Doubts:
    """Kept in a small file, so that a restart does not end them."""

    def __init__(self, disk: Disk, layout: Layout) -> None:
        self._disk = disk
        self._path = layout.doubtful
        self.ledgers: frozenset[LedgerId] = frozenset()

    async def load(self) -> None:
        try:
            self.ledgers = frozenset(await read_small(self._disk, self._path, decode_doubtful))
        except FileMissingError:
            return
        except WireError as bad:
            raise JournalCorruptError(f"{self._path} is damaged: {bad.what}") from bad

    async def begin(self, ledgers: Collection[LedgerId]) -> None:
        """Doubt these too, durably."""
        await self._save(self.ledgers | frozenset(ledgers))

    async def end(self, ledgers: Collection[LedgerId]) -> None:
        """These are whole again, or gone."""
        if ledgers:
            await self._save(self.ledgers - frozenset(ledgers))

    async def _save(self, ledgers: frozenset[LedgerId]) -> None:
        await write_small(self._disk, self._path, encode_doubtful(ledgers))
        self.ledgers = ledgers

    def instead_of(self, denial: BookieError, ledger_id: LedgerId) -> BookieError:
        """What to say where the bookie would deny something."""
        if ledger_id not in self.ledgers:
            return denial
        return EntryInDoubtError(f"{denial.what}, but this bookie lost a part of its journal and may have held it")
