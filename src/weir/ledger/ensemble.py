"""Ensemble of an open ledger: its bookies, the unacknowledged batches, and the replacement of failed bookies.

A batch has the entries of one iteration of the event loop. The writer acknowledges batches as a whole, in order,
when an ack quorum of each entry's write set has stored it. Counting per batch keeps the work per entry out of the
hot path; striping makes no difference, since all entries with the same residue share their write set
(`weir.ledger.quorum`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Protocol

from weir.ledger.context import LedgerContext
from weir.ledger.interfaces import Bookie
from weir.ledger.quorum import Stripes, choose_replacement
from weir.ledger.records import Record
from weir.ledger.transitions import replace_bookies
from weir.model.check import check
from weir.model.errors import BookieError, NotEnoughBookiesError, WeirError
from weir.model.ids import NO_ENTRY, BookieId, Buffer, EntryId
from weir.model.ledger import Fragment, LedgerMetadata, Quorum
from weir.runtime.interfaces import Timer
from weir.runtime.tasks import TaskScope

Waiter = tuple["asyncio.Future[EntryId]", EntryId]


class Batch:
    """Entries that are sent, answered and acknowledged together."""

    __slots__ = ("entries", "first", "held_by", "length", "size", "waiters")

    def __init__(self, first: EntryId) -> None:
        self.first = first
        self.entries: list[tuple[EntryId, Buffer]] = []
        self.size = 0
        #: The ledger's length up to and with the last entry.
        self.length = 0
        #: Callers to tell, each with the id that it gets.
        self.waiters: list[Waiter] = []
        #: The slots of the current ensemble that hold all they should of this batch.
        self.held_by = 0


class Slot:
    """One place in the ensemble, with the bookie that fills it now. A replaced bookie gets a new slot object, so
    that an answer to the old one cannot be taken for one of the new."""

    __slots__ = ("bit", "bookie", "bookie_id", "failure", "index", "outstanding", "outstanding_bytes")

    def __init__(self, index: int, bookie_id: BookieId, bookie: Bookie) -> None:
        self.index = index
        self.bit = 1 << index
        self.bookie_id = bookie_id
        self.bookie = bookie
        self.failure: BookieError | None = None
        #: Unanswered batches by first entry, in the order of sending: when sent, and how large.
        self.outstanding: dict[EntryId, tuple[float, int]] = {}
        self.outstanding_bytes = 0

    def sent(self, batch: Batch, now: float, size: int) -> None:
        """The batch is on its way to the bookie."""
        self.outstanding[batch.first] = (now, size)
        self.outstanding_bytes += size

    def answered(self, batch: Batch) -> None:
        """The bookie holds its share of the batch."""
        self.outstanding_bytes -= self.outstanding.pop(batch.first)[1]
        check(self.outstanding_bytes >= 0, "a bookie answers no more than was sent to it")

    def waiting_since(self) -> float | None:
        """When the oldest unanswered batch was sent."""
        for sent_at, _ in self.outstanding.values():
            return sent_at
        return None

    def fail(self, failure: BookieError) -> None:
        """No later answer counts."""
        self.failure = failure
        self.outstanding.clear()
        self.outstanding_bytes = 0


class Window:
    """The unacknowledged batches in order, and the last-add-confirmed behind them."""

    __slots__ = ("_batches", "_stripes", "frozen", "last_confirmed", "length")

    def __init__(self, stripes: Stripes) -> None:
        self._stripes = stripes
        self._batches: deque[Batch] = deque()
        #: While an ensemble change is being written down nothing may be acknowledged: the new fragment starts
        #: right after `last_confirmed`, so what is acknowledged now would be looked for on the wrong bookies.
        self.frozen = False
        self.last_confirmed = NO_ENTRY
        #: The ledger's length up to and with `last_confirmed`.
        self.length = 0

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def push(self, batch: Batch) -> None:
        """A batch was sent; it comes after all before it."""
        last = self._batches[-1].entries[-1][0] if self._batches else self.last_confirmed
        check(batch.first == last + 1, "entries are sent in order, without gaps")
        self._batches.append(batch)

    def pop_acknowledged(self) -> list[Batch]:
        """Take out, in order, the batches that may be acknowledged now."""
        done: list[Batch] = []
        held, batches = self._stripes.held, self._batches
        while batches and not self.frozen:
            batch = batches[0]
            if not held(batch.held_by, batch.first, len(batch.entries)):
                break
            check(batch.first == self.last_confirmed + 1, "entries are acknowledged in order, without gaps")
            done.append(batches.popleft())
            self.last_confirmed = batch.entries[-1][0]
            self.length = batch.length
        return done

    def forget(self, slot: Slot) -> None:
        """What the slot's former bookie held does not count any more."""
        for batch in self._batches:
            batch.held_by &= ~slot.bit

    def clear(self) -> list[Batch]:
        """Take out everything."""
        left = list(self._batches)
        self._batches.clear()
        return left


def plan_change(slots: Sequence[Slot], quorum: Quorum, context: LedgerContext) -> dict[int, BookieId]:
    """For each failed slot, as far as possible, who fills it from now on: another bookie that takes entries, or,
    if there is none, the same one once its quarantine is over. Empty if nobody can be found."""
    failed = [slot.index for slot in slots if slot.failure is not None]
    return replacements([slot.bookie_id for slot in slots], failed, quorum, context)


def replacements(
    ensemble: Sequence[BookieId], failed: Sequence[int], quorum: Quorum, context: LedgerContext
) -> dict[int, BookieId]:
    """For each failed place of the ensemble, as far as possible, who fills it from now on."""
    writable = [b for b in context.directory.writable() if not context.quarantine.holds(b)]
    racks = context.directory.racks()
    changed = list(ensemble)
    plan: dict[int, BookieId] = {}
    for slot in failed:
        others = [b for b in writable if b not in ensemble and b not in changed]
        chosen = choose_replacement(racks, others, changed, slot, quorum, rng=context.runtime.rng)
        if chosen is None and ensemble[slot] in writable:
            chosen = ensemble[slot]
        if chosen is not None:
            plan[slot] = changed[slot] = chosen
    return plan


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
