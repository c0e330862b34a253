"""Writing a recovered tail back to a full write quorum before the ledger is closed over it."""

import asyncio
import logging
from collections.abc import Sequence

from weir.ledger.adds import recovery_add
from weir.ledger.context import LedgerContext
from weir.ledger.ensemble import replacements
from weir.ledger.quorum import Stripes
from weir.model.errors import BookieError, RecoveryFailedError
from weir.model.ids import BookieId, Buffer, EntryId
from weir.model.ledger import Fragment, LedgerMetadata

log = logging.getLogger(__name__)


class WriteBack:
    """Adds chunks of the tail to the last ensemble, replacing bookies that fail.

    The replaced ensembles are this recovery's own affair until its closing compare-and-set: another recovery
    may close first, with its own. The bytes are those of the writer, so that copies of a deposed recoverer can
    never differ from those of the one that won.
    """

    def __init__(self, context: LedgerContext, ledger: LedgerMetadata) -> None:
        self._context = context
        self._ledger = ledger
        self._stripes = Stripes(ledger.quorum)
        self._ensemble = list(ledger.fragments[-1].bookies)
        #: Places whose bookie failed and could not be replaced; tried again only by replacing.
        self._failed: dict[int, BookieError] = {}
        #: Bookies that failed at some time.
        self.suspects: dict[BookieId, None] = {}
        #: Where entries live from some recovered entry on, if not where the metadata says.
        self.fragments: list[Fragment] = []

    async def write(self, chunk: Sequence[tuple[EntryId, Buffer]]) -> None:
        """Store the chunk on every bookie of its write sets. If some failed and nobody can take their place, an
        ack quorum of each write set is enough, as it is for the writer."""
        first = chunk[0][0]
        held = 0
        todo = [slot for slot in range(len(self._ensemble)) if slot not in self._failed]
        while True:
            for slot, failure in zip(todo, await self._add(todo, chunk), strict=True):
                if failure is None:
                    held |= 1 << slot
                else:
                    self._fail(slot, failure)
            if not self._failed:
                return
            plan = replacements(self._ensemble, list(self._failed), self._ledger.quorum, self._context)
            if not plan:
                break
            self._change(first, plan)
            todo = list(plan)
        if not self._stripes.held(held, first, len(chunk)):
            said = "; ".join(f"{self._ensemble[slot]}: {failure}" for slot, failure in self._failed.items())
            raise RecoveryFailedError(
                f"entry {first} of ledger {self._ledger.ledger_id} and following cannot be written back ({said})"
            )

    async def _add(
        self, slots: Sequence[int], chunk: Sequence[tuple[EntryId, Buffer]]
    ) -> list[BookieError | None]:
        return await asyncio.gather(*(self._add_to(slot, chunk) for slot in slots))

    async def _add_to(self, slot: int, chunk: Sequence[tuple[EntryId, Buffer]]) -> BookieError | None:
        share = self._stripes.share(slot, chunk)
        if not share:
            return None
        return await recovery_add(
            self._context.runtime.clock,
            self._context.pool,
            self._ensemble[slot],
            self._ledger.ledger_id,
            share,
            timeout_s=self._context.settings.recovery.request_timeout_s,
        )

    def _fail(self, slot: int, failure: BookieError) -> None:
        log.warning(
            "write-back of ledger %s: %s failed: %s", self._ledger.ledger_id, self._ensemble[slot], failure
        )
        self._failed[slot] = failure
        self.suspects[self._ensemble[slot]] = None
        self._context.quarantine.put(self._ensemble[slot])

    def _change(self, first: EntryId, plan: dict[int, BookieId]) -> None:
        for slot, bookie_id in plan.items():
            self._ensemble[slot] = bookie_id
            del self._failed[slot]
        fragment = Fragment(first, tuple(self._ensemble))
        self.fragments = [*(f for f in self.fragments if f.first_entry < first), fragment]
