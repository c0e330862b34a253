"""The clients of a simulated cluster: writers, readers, recoverers, who record all they ask and are told."""

import asyncio
from collections.abc import Callable
from random import Random

from weir.ledger.client import LedgerClient
from weir.ledger.reader import LedgerReader
from weir.ledger.writer import LedgerWriter
from weir.model.errors import InvariantError, WeirError
from weir.model.ids import EntryId, LedgerId
from weir.runtime.interfaces import Clock
from weir.testing.operations import Pending
from weir.testing.storage.history import History, LedgerOpKind, make_payload, payload_id
from weir.testing.storage.plan import Plan

#: A reader asks for so many entries at a time, at most.
_READ_AT_ONCE = 5
#: How many appends a writer sends in one turn; those beyond its window wait.
_BURSTS = (1, 1, 2, 5, 12, 30)


class Shared:
    """What the clients of one run know of each other: which ledgers there are."""

    def __init__(self, history: History, plan: Plan) -> None:
        self.history = history
        self.plan = plan
        self.ledgers: list[LedgerId] = []
        #: Set and cleared whenever something begins that is worth disturbing.
        self.begun = asyncio.Event()
        self._payloads: dict[str, int] = {}
        self._handles = 0

    def next_payload(self, client: str) -> int:
        """A number that this client never used before, in whatever life."""
        self._payloads[client] = self._payloads.get(client, 0) + 1
        return self._payloads[client]

    def next_handle(self, client: str) -> str:
        """A name for one opened ledger: what it sees is only comparable with itself."""
        self._handles += 1
        return f"{client}.{self._handles}"

    def disturb_me(self) -> None:
        """Whoever waits for a moment at which much is under way has it now."""
        self.begun.set()
        self.begun.clear()

    def some_ledger(self, rng: Random) -> LedgerId | None:
        """Any ledger, a late one more likely."""
        if not self.ledgers:
            return None
        late = self.ledgers[-4:]
        return rng.choice(late if rng.random() < 0.7 else self.ledgers)


class Client:
    """What all clients have: a name, the door to the ledgers, dice and a clock."""

    def __init__(self, name: str, client: LedgerClient, clock: Clock, rng: Random, shared: Shared) -> None:
        self.name = name
        self.client = client
        self.clock = clock
        self.rng = rng
        self.shared = shared
        self.plan = shared.plan
        self.history = shared.history

    async def pause(self, most_s: float) -> None:
        await self.clock.sleep(self.rng.uniform(0, most_s))

    async def recover(self, ledger_id: LedgerId) -> None:
        """Recover a ledger, whoever may be writing it."""
        pending = self.history.begin(self.name, LedgerOpKind.RECOVER, ledger=ledger_id)
        self.shared.disturb_me()
        try:
            closed = await self.client.recover(ledger_id)
        except WeirError as failure:
            fail(pending, failure)
        else:
            pending.ok(end=closed.last_entry)

    async def delete(self, ledger_id: LedgerId) -> None:
        pending = self.history.begin(self.name, LedgerOpKind.DELETE, ledger=ledger_id)
        try:
            await self.client.delete(ledger_id)
        except WeirError as failure:
            fail(pending, failure)
        else:
            pending.ok()


class Writer(Client):
    """Writes one ledger after the other, as a stream would: when one fails, it goes on in a new one."""

    async def run(self, left: list[int]) -> None:
        """`left` counts the entries that this writer may still append, over all its lives."""
        while left[0] > 0:
            try:
                writer = await self.client.create(self.plan.quorum)
            except WeirError as failure:
                raise_bug(failure)
                await self.pause(1.0)
                continue
            self.history.begin(self.name, LedgerOpKind.CREATE, ledger=writer.ledger_id).ok()
            self.shared.ledgers.append(writer.ledger_id)
            try:
                await self._fill(writer, left)
            except WeirError as failure:
                raise_bug(failure)
            await self._end(writer)

    async def _fill(self, writer: LedgerWriter, left: list[int]) -> None:
        """Append in bursts, some of them larger than the window, as fast as spreads them over the run."""
        seconds_each = self.plan.duration_s * self.plan.writers / self.plan.appends
        count = self.rng.randint(0, self.plan.ledger_appends)
        while count > 0 and left[0] > 0 and writer.failure is None:
            burst = min(count, left[0], self.rng.choice(_BURSTS))
            for _ in range(burst):
                self._append(writer)
            count -= burst
            left[0] -= burst
            self.shared.disturb_me()
            await writer.wait_capacity()
            await self.pause(2 * burst * seconds_each)

    def _append(self, writer: LedgerWriter) -> None:
        payload = make_payload(
            self.name, self.shared.next_payload(self.name), self.rng.randint(0, self.plan.max_payload)
        )
        pending = self.history.begin(
            self.name, LedgerOpKind.APPEND, ledger=writer.ledger_id, payload=payload_id(payload)
        )
        writer.append(payload).add_done_callback(_acknowledged(pending))

    async def _end(self, writer: LedgerWriter) -> None:
        """Close it, leave it open for whoever recovers it, or recover it oneself."""
        dice = self.rng.random()
        if dice < 0.2:
            await writer.abandon()
            return
        await self.pause(0.5)
        if dice < 0.3:
            await self.recover(writer.ledger_id)
        pending = self.history.begin(self.name, LedgerOpKind.CLOSE, ledger=writer.ledger_id)
        try:
            closed = await writer.close()
        except WeirError as failure:
            fail(pending, failure)
            await self.recover(writer.ledger_id)
        else:
            pending.ok(end=closed.last_entry)


class Reader(Client):
    """Reads ledgers while they are written, recovered, repaired and deleted."""

    async def run(self) -> None:
        while True:
            await self.pause(1.0)
            ledger_id = self.shared.some_ledger(self.rng)
            if ledger_id is None:
                continue
            try:
                reader = await self.client.open(ledger_id, recover=False)
            except WeirError as failure:
                raise_bug(failure)
                continue
            try:
                await self._read_some(reader, self.shared.next_handle(self.name))
            finally:
                await reader.close()

    async def _read_some(self, reader: LedgerReader, handle: str) -> None:
        after = EntryId(-1)
        for _ in range(self.rng.randint(1, 4)):
            confirmed = await self._confirmed(reader, handle, after)
            if confirmed is None:
                return
            if confirmed >= 0:
                first = self.rng.randint(max(0, confirmed - _READ_AT_ONCE), confirmed)
                if self.rng.random() < 0.3:
                    first = self.rng.randint(0, confirmed)
                await read_range(self.history, handle, reader, first, min(confirmed, first + _READ_AT_ONCE - 1))
            after = confirmed

    async def _confirmed(self, reader: LedgerReader, handle: str, after: EntryId) -> EntryId | None:
        """Ask how far the ledger is, or wait until it is further."""
        pending = self.history.begin(handle, LedgerOpKind.CONFIRMED, ledger=reader.ledger_id)
        try:
            if self.rng.random() < 0.5:
                confirmed = await reader.last_confirmed()
            else:
                confirmed = await reader.wait_for(after, timeout_s=self.rng.uniform(0.0, 2.0))
        except WeirError as failure:
            fail(pending, failure)
            return None
        pending.ok(end=confirmed)
        return confirmed


class Recoverer(Client):
    """Recovers ledgers at any moment, most of them under a writer that still writes; deletes some."""

    async def run(self) -> None:
        while True:
            await self.pause(3.0)
            ledger_id = self.shared.some_ledger(self.rng)
            if ledger_id is None:
                continue
            if self.plan.deletes and self.rng.random() < 0.3:
                await self.delete(ledger_id)
            else:
                await self.recover(ledger_id)


async def read_range(history: History, client: str, reader: LedgerReader, first: int, last: int) -> bool:
    """Read entries, recording each; whether all could be read."""
    pending = {
        EntryId(e): history.begin(client, LedgerOpKind.READ, ledger=reader.ledger_id, entry=EntryId(e))
        for e in range(first, last + 1)
    }
    try:
        entries = await reader.read(EntryId(first), EntryId(last))
    except WeirError as failure:
        for each in pending.values():
            fail(each, failure)
        return False
    for entry in entries:
        pending[entry.entry_id].ok(payload=payload_id(entry.payload))
    return True


def fail(pending: Pending, failure: WeirError) -> None:
    """Record an error that the client was told; a bug goes up instead."""
    pending.failed(failure)
    raise_bug(failure)


def raise_bug(failure: WeirError) -> None:
    """Trouble is expected; a promise that the code breaks to itself never is."""
    if isinstance(failure, InvariantError):
        raise failure


def _acknowledged(pending: Pending) -> "Callable[[asyncio.Future[EntryId]], None]":
    def done(answer: "asyncio.Future[EntryId]") -> None:
        failure = answer.exception()
        if failure is None:
            pending.ok(entry=answer.result())
        elif isinstance(failure, WeirError):
            fail(pending, failure)
        else:
            raise failure

    return done
