"""Reading from any replica: the likely fastest first, a second one if it is slow, the next if it fails."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from weir.ledger.interfaces import BookiePool
from weir.ledger.settings import ReaderSettings
from weir.model.errors import (
    BookieError,
    BookieUnavailableError,
    EntryCorruptError,
    EntryInDoubtError,
    EntryLostError,
    EntryUnreadableError,
    NoSuchEntryError,
    NoSuchLedgerError,
    WireError,
)
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.model.ledger import ReadResult
from weir.runtime.interfaces import Clock
from weir.wire.entry import Entry, decode_entry

#: What a bookie says that knows: asking again brings nothing else.
_ANSWERS = (EntryCorruptError, NoSuchEntryError, NoSuchLedgerError)
#: How much of the past stays in a bookie's mean latency with each new answer.
_INERTIA = 0.8
#: After so long a failure or a latency says nothing any more, and the bookie gets another chance.
_MEMORY_S = 15.0


class Ranking:
    """Which replica to ask first: those that did not just fail, then those in our rack, then the fastest."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._latency_s: dict[BookieId, tuple[float, float]] = {}
        self._failed_at: dict[BookieId, float] = {}

    def succeeded(self, bookie_id: BookieId, seconds: float) -> None:
        before = self._latency_of(bookie_id) or seconds
        mean_s = _INERTIA * before + (1 - _INERTIA) * seconds
        self._latency_s[bookie_id] = (mean_s, self._clock.monotonic())
        self._failed_at.pop(bookie_id, None)

    def failed(self, bookie_id: BookieId) -> None:
        self._failed_at[bookie_id] = self._clock.monotonic()

    def order(self, replicas: Sequence[BookieId], *, near: Sequence[BookieId] = ()) -> list[BookieId]:
        """The replicas, best first; equals keep their order, so that unknown ones share the load by striping."""
        return sorted(replicas, key=lambda b: (self._just_failed(b), b not in near, self._latency_of(b)))

    def _just_failed(self, bookie_id: BookieId) -> bool:
        return bookie_id in self._failed_at and self._recent(self._failed_at[bookie_id])

    def _latency_of(self, bookie_id: BookieId) -> float:
        mean_s, at = self._latency_s.get(bookie_id, (0.0, 0.0))
        return mean_s if self._recent(at) else 0.0

    def _recent(self, moment: float) -> bool:
        return self._clock.monotonic() - moment < _MEMORY_S


class Reply(NamedTuple):
    """Whole entries from one replica, in order, and the last-add-confirmed that it knows."""

    entries: list[Entry]
    last_confirmed: EntryId


class ReplicaReads:
    """Asks bookies for entries until one gives them whole."""

    def __init__(
        self,
        clock: Clock,
        pool: BookiePool,
        settings: ReaderSettings,
        *,
        damaged: Callable[[LedgerId, BookieId], None] = lambda _ledger, _bookie: None,
    ) -> None:
        """`damaged` is told of bookies whose copy is damaged where another one is whole."""
        self._damaged = damaged
        self._clock = clock
        self._pool = pool
        self._settings = settings
        self.ranking = Ranking(clock)

    async def read(
        self,
        ledger_id: LedgerId,
        first: EntryId,
        last: EntryId,
        replicas: Sequence[BookieId],
        max_bytes: int | None = None,
    ) -> Reply:
        """What one of the replicas holds in [first, last], from `first` on, within a chunk and `max_bytes`; the
        replicas are asked in the order given. EntryUnreadableError, with what each said, if none has `first`
        whole; EntryLostError if each of them answered, and one that its copy is damaged."""
        chunk_bytes = self._settings.chunk_bytes
        most = chunk_bytes if max_bytes is None else min(max_bytes, chunk_bytes)
        said: dict[BookieId, BookieError] = {}
        left = list(reversed(replicas))
        asked: dict[asyncio.Task[Reply | BookieError], BookieId] = {}
        try:
            while left or asked:
                if left:
                    bookie_id = left.pop()
                    ask = self._ask(bookie_id, ledger_id, first, last, most)
                    asked[asyncio.get_running_loop().create_task(ask)] = bookie_id
                patience_s = self._settings.speculative_after_s if left else None
                await asyncio.wait(list(asked), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in asked if task.done()]:
                    reply = task.result()
                    if isinstance(reply, Reply):
                        for bookie_id, failure in said.items():
                            if isinstance(failure, EntryCorruptError):
                                self._damaged(ledger_id, bookie_id)
                        return reply
                    said[asked.pop(task)] = reply
        finally:
            for task in asked:
                task.cancel()
        reasons = "; ".join(f"{bookie_id}: {reason.what}" for bookie_id, reason in said.items())
        what = f"no replica gave entry {first} of ledger {ledger_id} whole ({reasons})"
        answers = list(said.values())
        certain = not any(isinstance(answer, EntryInDoubtError) for answer in answers)
        if (
            certain
            and all(isinstance(answer, _ANSWERS) for answer in answers)
            and any(isinstance(answer, EntryCorruptError) for answer in answers)
        ):
            raise EntryLostError(what, ledger_id=ledger_id, entry_id=first)
        raise EntryUnreadableError(what)

    async def _ask(
        self, bookie_id: BookieId, ledger_id: LedgerId, first: EntryId, last: EntryId, most: int
    ) -> Reply | BookieError:
        """One replica's answer, checked; a failure is returned, since another replica may do better."""
        begun = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._settings.read_timeout_s):
                result = await self._pool.get(bookie_id).read(ledger_id, first, last, max_bytes=most)
            reply = whole(ledger_id, first, last, result)
        except TimeoutError:
            self.ranking.failed(bookie_id)
            return BookieUnavailableError(f"no answer in {self._settings.read_timeout_s} s")
        except BookieError as failure:
            self.ranking.failed(bookie_id)
            return failure
        self.ranking.succeeded(bookie_id, self._clock.monotonic() - begun)
        return reply


def whole(ledger_id: LedgerId, first: EntryId, last: EntryId, result: ReadResult) -> Reply:
    """A bookie's answer, decoded up to the first entry that is not whole; EntryCorruptError if that is `first`."""
    entries: list[Entry] = []
    expected = first
    for entry_id, data in result.entries:
        try:
            entry = decode_entry(data)
        except WireError as bad:
            if entries:
                break
            raise EntryCorruptError(f"entry {entry_id} of ledger {ledger_id} came damaged: {bad.what}") from bad
        if entry.ledger_id != ledger_id or entry.entry_id != entry_id or not expected <= entry_id <= last:
            raise EntryCorruptError(f"asked for entry {first} of ledger {ledger_id}, got {entry[:2]}")
        entries.append(entry)
        expected = EntryId(entry_id + 1)
    if not entries or entries[0].entry_id != first:
        raise EntryCorruptError(f"asked for entry {first} of ledger {ledger_id}, got none or another")
    return Reply(entries, result.last_confirmed)
