"""The bookies that a ledger is being written to: who failed, and how others take their places."""

import asyncio
import logging
from functools import partial
from typing import Protocol

from weir.ledger.context import LedgerContext
from weir.ledger.ensemble import plan_change
from weir.ledger.quorum import Stripes
from weir.ledger.records import Record
from weir.ledger.transforms import replace_bookies
from weir.ledger.window import Slot, Window
from weir.model.errors import BookieError, NotEnoughBookiesError, WeirError
from weir.model.ids import BookieId, EntryId
from weir.model.ledger import Fragment, LedgerMetadata
from weir.runtime.interfaces import Timer
from weir.runtime.tasks import TaskScope

log = logging.getLogger(__name__)


class EnsembleUser(Protocol):
    """The writer, as far as its ensemble asks it."""

    @property
    def ended(self) -> bool:
        """Whether nothing more is acknowledged: the ensemble changes no more."""

    def send_window(self, slot: Slot) -> None:
        """Send the slot's bookie, which is a new one, what is unacknowledged."""

    def acknowledge(self) -> None:
        """More may be held by an ack quorum now."""

    def die(self, failure: WeirError) -> None:
        """The ledger can be written no more."""


class OpenEnsemble:
    """`slots` is one list for good: its places change."""

    def __init__(
        self, context: LedgerContext, record: Record, window: Window, writer: EnsembleUser, tasks: TaskScope
    ) -> None:
        #: The ledger as its writer last wrote it down.
        self.record = record
        self.slots = [
            Slot(index, bookie_id, context.pool.get(bookie_id))
            for index, bookie_id in enumerate(record.ledger.fragments[-1].bookies)
        ]
        #: Bookies that failed at some time.
        self.suspects: dict[BookieId, None] = {}
        self._context = context
        self._window = window
        self._writer = writer
        self._tasks = tasks
        self._change: asyncio.Task[None] | None = None
        self._retry: Timer | None = None

    @property
    def metadata(self) -> LedgerMetadata:
        return self.record.ledger

    @property
    def degraded(self) -> bool:
        """Whether some bookie has failed and no other could take its place yet."""
        return any(slot.failure is not None for slot in self.slots)

    def failed(self, slot: Slot, failure: BookieError) -> None:
        """The slot's bookie counts no more; another one is looked for."""
        log.warning("ledger %s: bookie %s failed: %s", self.metadata.ledger_id, slot.bookie_id, failure)
        slot.fail(failure)
        self.suspects[slot.bookie_id] = None
        self._context.quarantine.put(slot.bookie_id)
        self._start_change()

    def close(self) -> None:
        """Nobody is looked for any more."""
        if self._retry is not None:
            self._retry.cancel()

    def _start_change(self) -> None:
        self._retry = None
        if self._change is None and not self._writer.ended:
            self._change = self._tasks.spawn(self._change_ensemble(), "ensemble-change")

    async def _change_ensemble(self) -> None:
        """Replace failed bookies, one change at a time, until none is left or nobody can take its place."""
        try:
            while not self._writer.ended and self.degraded:
                plan = plan_change(self.slots, self.metadata.quorum, self._context)
                if not plan:
                    self._go_on_without()
                    return
                bookies = tuple(plan.get(slot.index, slot.bookie_id) for slot in self.slots)
                await self._write_down(bookies)
                self._adopt(bookies, plan)
        except WeirError as failure:
            self._writer.die(failure)
        finally:
            self._change = None

    async def _write_down(self, bookies: tuple[BookieId, ...]) -> None:
        """Say in the metadata where entries live from the first unacknowledged one on."""
        before = self.metadata.fragments[-1].bookies
        if bookies == before:
            return  # a bookie is taken back into its own place
        self._window.frozen = True
        fragment = Fragment(EntryId(self._window.last_confirmed + 1), bookies)
        change = partial(replace_bookies, fragment=fragment, instead_of=before)
        self.record = await self._context.records.change(self.metadata.ledger_id, change, self.record)

    def _adopt(self, bookies: tuple[BookieId, ...], plan: dict[int, BookieId]) -> None:
        """The metadata names the new bookies: send them what is unacknowledged, then acknowledge again."""
        if self._writer.ended:
            return
        for index in plan:
            slot = Slot(index, bookies[index], self._context.pool.get(bookies[index]))
            self.slots[index] = slot
            self._window.forget(slot)
            self._writer.send_window(slot)
        first = self._window.last_confirmed + 1
        log.info("ledger %s: from entry %s on %s", self.metadata.ledger_id, first, bookies)
        self._window.frozen = False
        self._writer.acknowledge()

    def _go_on_without(self) -> None:
        """No bookie can take a failed one's place: go on if every entry can still reach its ack quorum."""
        ledger = self.metadata
        alive = sum(slot.bit for slot in self.slots if slot.failure is None)
        failed = {slot.bookie_id: slot.failure for slot in self.slots if slot.failure is not None}
        if not Stripes(ledger.quorum).suffices(alive):
            said = "; ".join(f"{bookie_id}: {failure}" for bookie_id, failure in failed.items())
            what = f"ledger {ledger.ledger_id} lost bookies that none can replace ({said})"
            self._writer.die(NotEnoughBookiesError(what))
            return
        log.warning("ledger %s: degraded, nobody can replace %s yet", ledger.ledger_id, sorted(failed))
        retry_s = self._context.settings.writer.degraded_retry_s
        self._retry = self._context.runtime.clock.call_later(retry_s, self._start_change)
        self._writer.acknowledge()  # whoever waited for the failed one's answers need not any more
