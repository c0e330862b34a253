"""Recovery of a ledger whose writer is gone: fence, find the end, write the tail back, close.

Any number of recoveries may run at once, with each other and with a writer that still believes in itself.
Whoever closes first decides, and everyone's decision would be right:

1. IN_RECOVERY is written down: the writer can change neither ensemble nor state any more.
2. The last ensemble is fenced, so far that no write set has an ack quorum left that takes its adds.
3. From the highest last-add-confirmed on, entries are read from the ensemble *as the writer left it*. The first
   that was surely never acknowledged (`weir.ledger.transitions`) ends the ledger, since acknowledgements are in
   order. A bookie's denial counts only if it was fenced before it was asked: an unfenced one may take the
   entry right after denying it, and make it acknowledged (found in BookKeeper with TLA+, its issue 2614).
   One that all who hold it have damaged (LOST, and so twice) may have been acknowledged: it keeps its place.
4. The recovered tail is written back to full write sets, then the end is recorded in the metadata.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from weir.ledger.context import LedgerContext
from weir.ledger.copying import recovery_add
from weir.ledger.ensemble import replacements
from weir.ledger.marks import mark_if_suspect
from weir.ledger.quorum import Stripes
from weir.ledger.records import Record
from weir.ledger.replicas import whole
from weir.ledger.transitions import Answer, Verdict, begin_recovery, close_recovered, decide
from weir.model.check import check
from weir.model.errors import (
    BookieError,
    EntryCorruptError,
    EntryInDoubtError,
    EntryLostError,
    EntryUnreadableError,
    LedgerClosedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    RecoveryFailedError,
)
from weir.model.ids import NO_ENTRY, BookieId, Buffer, EntryId, LedgerId
from weir.model.ledger import Fragment, LedgerMetadata, LedgerState
from weir.runtime.tasks import TaskScope
from weir.wire.entry import Entry, encode_entry


class Fencing:
    """Fences the bookies of the last ensemble. Retries bookies that do not answer until `close()`."""

    def __init__(self, context: LedgerContext, ledger: LedgerMetadata) -> None:
        self._context = context
        self._settings = context.settings.recovery
        self._ledger_id = ledger.ledger_id
        self._stripes = Stripes(ledger.quorum)
        self._tasks = TaskScope(f"fence-{ledger.ledger_id}")
        self._fenced = 0
        self._confirmed = NO_ENTRY
        self._moved = asyncio.Event()
        self._answers: dict[BookieId, asyncio.Task[None]] = {
            bookie_id: self._tasks.spawn(self._fence(slot, bookie_id), bookie_id)
            for slot, bookie_id in enumerate(ledger.fragments[-1].bookies)
        }

    async def covered(self) -> EntryId:
        """Wait until no write set has an ack quorum of bookies left that would take an add of the writer; answers
        the highest last-add-confirmed that any of them knew."""
        while not self._stripes.covered(self._fenced):
            self._moved.clear()
            await self._moved.wait()
        return self._confirmed

    async def fenced(self, bookie_id: BookieId) -> None:
        """Wait until this bookie is fenced."""
        await asyncio.shield(self._answers[bookie_id])

    async def close(self) -> None:
        await self._tasks.close()

    async def _fence(self, slot: int, bookie_id: BookieId) -> None:
        confirmed = await self._ask(bookie_id)
        while confirmed is None:
            await self._context.runtime.clock.sleep(self._settings.retry_pause_s)
            confirmed = await self._ask(bookie_id)
        self._fenced |= 1 << slot
        self._confirmed = max(self._confirmed, confirmed)
        self._moved.set()

    async def _ask(self, bookie_id: BookieId) -> EntryId | None:
        """The last-add-confirmed of the bookie, which is fenced now; None if it did not say so."""
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                return await self._context.pool.get(bookie_id).fence(self._ledger_id)
        except (BookieError, TimeoutError):
            return None


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


async def recover(context: LedgerContext, ledger_id: LedgerId) -> Record:
    """Close the ledger at its end and return its record; at once if it is closed already. RecoveryFailedError if
    the end cannot be decided for now; trying again later is safe, also by others."""
    record = await context.records.get(ledger_id)
    if record.ledger.state is LedgerState.CLOSED:
        return record
    try:
        record = await context.records.change(ledger_id, begin_recovery, record)
    except LedgerClosedError:
        return await context.records.get(ledger_id)
    recovery = Recovery(context, record.ledger)
    try:
        async with asyncio.timeout(context.settings.recovery.timeout_s):
            return await recovery.run()
    except (TimeoutError, RecoveryFailedError) as failure:
        record = await context.records.get(ledger_id)
        if record.ledger.state is LedgerState.CLOSED:
            return record  # someone else could
        if isinstance(failure, RecoveryFailedError):
            raise
        raise RecoveryFailedError(f"the end of ledger {ledger_id} cannot be decided: {recovery.doing}") from None


class Recovery:
    """One attempt at one ledger."""

    def __init__(self, context: LedgerContext, ledger: LedgerMetadata) -> None:
        self._context = context
        self._settings = context.settings.recovery
        #: As the writer left it. Reads go by this ensemble to the end, even while write-back replaces bookies: one
        #: that the writer never wrote to would deny everything.
        self._ledger = ledger
        self._fencing = Fencing(context, ledger)
        self._back = WriteBack(context, ledger)
        self._found: dict[EntryId, Entry] = {}
        self._lost: dict[EntryId, None] = {}
        #: What keeps it, for an error message.
        self.doing = "nothing was asked yet"

    async def run(self) -> Record:
        base = self._ledger.fragments[-1]
        try:
            self.doing = f"not enough of {base.bookies} can be fenced"
            confirmed = await self._fencing.covered()
            # A fragment starts after what was acknowledged when it was written down; its bookies may not know.
            confirmed = max(confirmed, EntryId(base.first_entry - 1))
            last, length = await self._recover_tail(confirmed)
            check(last >= confirmed, "a recovered ledger holds everything that was confirmed")
        finally:
            await self._fencing.close()
        end = partial(
            close_recovered, base=base, rewritten=tuple(self._back.fragments), last_entry=last, length=length
        )
        self.doing = "its close cannot be written down"
        closed = await self._context.records.change(self._ledger.ledger_id, end)
        ledger = closed.ledger
        log.info("ledger %s is recovered and closed at entry %s", ledger.ledger_id, ledger.last_entry)
        # Bookies that took no part in the write-back lack what they should hold.
        await mark_if_suspect(self._context, ledger, self._back.suspects)
        return closed

    async def _recover_tail(self, confirmed: EntryId) -> tuple[EntryId, int]:
        """Write back what follows the confirmed entry; answers where the ledger ends, and its length."""
        last, length = confirmed, None
        while True:
            chunk = await self._next_chunk(EntryId(last + 1))
            if not chunk and EntryId(last + 1) in self._lost:
                last = EntryId(last + 1)
                log.warning("entry %s of ledger %s is damaged everywhere, and lost", last, self._ledger.ledger_id)
                continue
            if not chunk:
                break
            check(
                chunk[0].entry_id == last + 1 and chunk[-1].entry_id == last + len(chunk),
                "a recovery writes entries back in order, without gaps",
            )
            self.doing = f"entry {chunk[0].entry_id} and following cannot be written back"
            await self._back.write([(entry.entry_id, _encoded(entry)) for entry in chunk])
            last, length = chunk[-1].entry_id, chunk[-1].ledger_length
        if length is None:
            length = await self._length_at(last)
        return last, length

    async def _next_chunk(self, first: EntryId) -> list[Entry]:
        """Entries from `first` on that exist and are whole; none if `first` is the first that is not."""
        chunk: list[Entry] = []
        size = 0
        while len(chunk) < self._settings.chunk_entries:
            entry = await self._find(EntryId(first + len(chunk)))
            if entry is None:
                break
            if chunk and size + len(entry.payload) > self._settings.chunk_bytes:
                self._found[entry.entry_id] = entry  # for the next chunk: what is sent at once is bounded
                break
            chunk.append(entry)
            size += len(entry.payload)
        return chunk

    async def _find(self, entry_id: EntryId) -> Entry | None:
        """The entry; None once it is certain that it was never acknowledged, or is lost."""
        doubted = False  # what damaged it may have been the way from the disk: it counts once it is said twice
        while entry_id not in self._found and entry_id not in self._lost:
            answers = dict.fromkeys(self._ledger.write_set(entry_id), Answer.UNKNOWN)
            verdict = await self._ask_all(entry_id, answers)
            if verdict is Verdict.ABSENT:
                return None
            if verdict is Verdict.LOST:
                if doubted:
                    self._lost[entry_id] = None
                doubted = True
            if verdict in (Verdict.LOST, Verdict.UNDECIDED):
                said = ", ".join(f"{bookie_id}: {answer.value}" for bookie_id, answer in answers.items())
                self.doing = f"entry {entry_id} may have been acknowledged ({said})"
                await self._context.runtime.clock.sleep(self._settings.retry_pause_s)
        return self._found.pop(entry_id, None)

    async def _ask_all(self, entry_id: EntryId, answers: dict[BookieId, Answer]) -> Verdict:
        """Ask the whole write set at once; stop as soon as the verdict is clear."""
        loop = asyncio.get_running_loop()
        asked = {loop.create_task(self._ask(bookie_id, entry_id)): bookie_id for bookie_id in answers}
        verdict = Verdict.UNDECIDED
        try:
            while asked and verdict is Verdict.UNDECIDED:
                await asyncio.wait(list(asked), return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in asked if task.done()]:
                    answers[asked.pop(task)] = task.result()
                verdict = decide(answers.values(), self._ledger.quorum)
        finally:
            for task in asked:
                task.cancel()
        return verdict

    async def _ask(self, bookie_id: BookieId, entry_id: EntryId) -> Answer:
        """What one bookie says, fenced before it is asked. Entries after this one come along if it has them."""
        last = EntryId(entry_id + self._settings.chunk_entries - 1)
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                await self._fencing.fenced(bookie_id)
                result = await self._context.pool.get(bookie_id).read(
                    self._ledger.ledger_id, entry_id, last, max_bytes=self._settings.chunk_bytes
                )
            reply = whole(self._ledger.ledger_id, entry_id, last, result)
        except (NoSuchEntryError, NoSuchLedgerError):
            return Answer.DENIED
        except EntryInDoubtError:
            return Answer.UNKNOWN
        except EntryCorruptError:
            return Answer.DAMAGED
        except (BookieError, TimeoutError):
            return Answer.UNKNOWN
        for entry in reply.entries:
            self._found.setdefault(entry.entry_id, entry)
        return Answer.HELD

    async def _length_at(self, entry_id: EntryId) -> int:
        """The ledger's length up to and with an acknowledged entry, which says it itself."""
        if entry_id == NO_ENTRY:
            return 0
        reads = self._context.reads
        while True:
            ledger = (await self._context.records.get(self._ledger.ledger_id)).ledger
            order = reads.ranking.order(ledger.write_set(entry_id))
            try:
                reply = await reads.read(ledger.ledger_id, entry_id, entry_id, order)
                return reply.entries[0].ledger_length
            except EntryLostError:  # about as long as up to the last that is whole
                if entry_id <= 0:
                    return 0
                entry_id = EntryId(entry_id - 1)
            except EntryUnreadableError as unreadable:
                self.doing = f"its last entry, {entry_id}, cannot be read: {unreadable.what}"
                await self._context.runtime.clock.sleep(self._settings.retry_pause_s)


def _encoded(entry: Entry) -> Buffer:
    """The entry's bytes as the writer made them."""
    return encode_entry(entry.ledger_id, entry.entry_id, entry.last_confirmed, entry.ledger_length, entry.payload)
