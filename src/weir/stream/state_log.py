"""State log: a stream's small state (cursors, deduplication, releases) as key-value pairs in a separate ledger.

Changes take effect in memory at once. One ledger entry has all changes since the last one, so an acknowledgement
costs no metadata write and no ledger write of its own. If the ledger is much larger than the live state, or is a
former holder's, the log writes the whole state to a new ledger and moves the chain's pointer by compare-and-set,
so only the stream's holder can move it.

If a ledger has one copy of each entry only, the log writes each entry twice, one after the other: a flipped byte
must not lose cursors. Applying an entry twice changes nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace

from weir.ledger.reader import LedgerReader
from weir.ledger.writer import LedgerWriter
from weir.model.check import check
from weir.model.cluster import DEFLATED_STATE
from weir.model.errors import (
    EntryLostError,
    StorageFullError,
    StreamClosedError,
    StreamFencedError,
    WeirError,
    WriterFencedError,
)
from weir.model.ids import EntryId
from weir.runtime.tasks import TaskScope
from weir.stream.chain import HeldChain
from weir.stream.context import StreamContext
from weir.wire.stream import DEFLATED, PLAIN, decode_changes, encode_changes

log = logging.getLogger(__name__)

#: Changes above this size go to a new ledger with the whole state, in entries of about this size. The ledger's own
#: limit is higher.
_MAX_ENTRY_BYTES = 1024 * 1024

#: Returns the value of a key at the time of the write.
Source = Callable[[], bytes]


class StateLog:
    """The state of a stream. The holder of the stream creates it with `StateLog.open`."""

    def __init__(self, context: StreamContext, name: str, chain: HeldChain, values: dict[str, bytes]) -> None:
        self._name = name
        #: Whether changes of the former holder are lost, so that values may be outdated.
        self.damaged = False
        self._context = context
        self._settings = context.settings
        self._twice = context.settings.quorum.write == 1
        self._clock = context.runtime.clock
        self._chain = chain
        self._values = values  # last written values, or the values of the next write
        self._changed: dict[str, bytes | Source | None] = {}
        self._writer: LedgerWriter | None = None
        self._written_bytes = 0
        #: Number of changes so far, and number of durable ones.
        self._noted = self._durable = 0
        self._failure: WeirError | None = None
        self._said = ""
        self._full: StorageFullError | None = None
        self._on_failure: Callable[[WeirError], None] = lambda failure: None
        self._beside: dict[str, Callable[[], bytes | None]] = {}
        self._tasks = TaskScope(f"state of {name}", on_failure=self._failed)
        self._flusher: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        #: Number of callers in `flush`.
        self._waiting = 0
        self._left = False

    @classmethod
    def given(
        cls, context: StreamContext, name: str, chain: HeldChain, values: Mapping[str, bytes], *, unsaved: bool
    ) -> "StateLog":
        """Create the state from the former holder's handover; `unsaved`: the whole state must be written."""
        state = cls(context, name, chain, dict(values))
        if unsaved:
            state._note("", None)  # any change: the first write puts the whole state into a new ledger
        return state

    @classmethod
    async def open(cls, context: StreamContext, name: str, chain: HeldChain) -> "StateLog":
        """Fence the former holder's state ledger and read it."""
        values: dict[str, bytes] = {}
        lost: list[EntryLostError] = []
        if chain.value.state_ledger is not None:
            reader = await context.ledgers.open(chain.value.state_ledger, recover=True)
            try:
                lost = await _load(reader, values)
                if lost:
                    log.warning("stream %s: damaged entries of its state are lost, cursors may be outdated", name)
            finally:
                await reader.close()
        state = cls(context, name, chain, values)
        state.damaged = bool(lost)
        return state

    def get(self, key: str) -> bytes | None:
        """The value of a key as of the last `put`; a `mark` shows after its write."""
        return self._values.get(key)

    def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self._values if key.startswith(prefix))

    def put(self, key: str, value: bytes) -> None:
        """Set a key; the next flush makes it durable."""
        self._values[key] = value
        self._note(key, value)

    def mark(self, key: str, source: Source) -> None:
        """Mark a key as changed; `source` returns its value once per write, after any number of changes."""
        self._note(key, source)

    def with_each_write(self, key: str, source: Callable[[], bytes | None]) -> None:
        """Include this key atomically in each later write, with the value that `source` returns then; None deletes
        the key."""
        self._beside[key] = source

    def delete(self, key: str) -> None:
        if self._values.pop(key, None) is not None or key in self._changed:
            self._note(key, None)

    @property
    def failure(self) -> WeirError | None:
        """Why the state log is dead; None while it is alive."""
        return self._failure

    @property
    def durable(self) -> bool:
        """Whether all changes are written."""
        return self._durable == self._noted

    def on_failure(self, callback: Callable[[WeirError], None]) -> None:
        """Call a plain function once the state log is dead, for example because another broker holds the state."""
        self._on_failure = callback

    async def flush(self, *, unless_full: bool = False) -> None:
        """Make all changes so far durable now; further changes may follow meanwhile. `unless_full`: raise if the
        disk is full instead of waiting."""
        wanted = self._noted
        self._waiting += 1
        try:
            await self._flushed(wanted, unless_full=unless_full)
        finally:
            self._waiting -= 1

    async def _flushed(self, wanted: int, *, unless_full: bool) -> None:
        while self._durable < wanted:
            if self._left:
                raise StreamClosedError(f"the state of {self._name} moves to another broker")
            if unless_full and self._full is not None:
                raise self._full
            if self._failure is not None:
                raise self._failure
            self._schedule()
            self._hurry.set()
            if self._flusher is not None:
                await asyncio.wait([self._flusher])
        if self._failure is not None:
            raise self._failure

    async def leave(self) -> None:
        """Stop writing, so that the next holder continues with `contents`. Pending changes are written before if
        one entry is enough, or if a `flush` waits for them; otherwise they are lost with this holder unless the
        next one gets them in `contents`."""
        try:
            if self._failure is None and (self._writer is not None or self._waiting):
                await self.flush(unless_full=True)
        except WeirError as failed:
            log.info("stream %s: the last changes of its state are not written yet: %s", self._name, failed)
        self._left = True
        self._hurry.set()
        while self._flusher is not None:
            await asyncio.wait([self._flusher])

    def contents(self) -> tuple[dict[str, bytes], bool]:
        """All values as a write would have them now, and whether any of them is not written."""
        self._changed = {key: _bytes_of(change) for key, change in self._changed.items()}
        values = dict(self._values)
        _apply(values, {key: _bytes_of(change) for key, change in self._changed.items()})
        return values, bool(self._changed) or self._durable < self._noted

    async def release(self) -> LedgerWriter | None:
        """Release the state after the handover of its contents. The caller closes the returned writer."""
        self._failure = self._failure or StreamClosedError(f"the state of {self._name} is closed")
        await self._tasks.close()
        return self._writer if self._writer is not None and self._writer.failure is None else None

    async def close(self) -> None:
        """Flush and release everything. If the flush fails, the next holder gets the state of the last write."""
        self._left = False
        try:
            if self._failure is None:
                await self.flush(unless_full=True)
                if self._writer is not None:
                    await self._writer.close()
        except WeirError as failed:
            log.warning("stream %s: the last changes of its state were not written: %s", self._name, failed)
        self._failure = self._failure or StreamClosedError(f"the state of {self._name} is closed")
        await self._tasks.close()
        if self._writer is not None and self._writer.failure is None:
            await self._writer.abandon()

    # --- writing ----------------------------------------------------------------------------------------

    def _note(self, key: str, change: bytes | Source | None) -> None:
        self._noted += 1
        self._changed[key] = change
        self._schedule()

    def _schedule(self) -> None:
        if self._flusher is None and self._failure is None and not self._left:
            self._flusher = self._tasks.spawn(self._flush_soon(), "flush")

    async def _flush_soon(self) -> None:
        """Write all changes within the pause as one entry."""
        try:
            try:
                async with asyncio.timeout(self._settings.state_pause_s):
                    await self._hurry.wait()
            except TimeoutError:
                pass
            self._hurry.clear()
            if not self._left:
                await self._write()
        finally:
            self._flusher = None
            if self._changed:
                self._schedule()

    async def _write(self) -> None:
        """Write pending changes. After a failure all of them stay pending, for a new ledger."""
        changed, self._changed, noted = self._changed, {}, self._noted
        for key, source in self._beside.items():
            value = source()
            if value != self._values.get(key):
                changed[key] = value
        _apply(self._values, changes := {key: _bytes_of(change) for key, change in changed.items()})
        try:
            payload = self._encoded(changes)
            if self._writer is None or len(payload) > _MAX_ENTRY_BYTES or self._is_due_for_a_new_ledger():
                await self._begin_ledger()
            else:
                await self._append_or_begin(self._writer, payload)
            check(noted >= self._durable, "the number of durable changes never decreases")
            self._durable, self._said, self._full = noted, "", None
        except (StreamFencedError, WriterFencedError) as fenced:
            self._failure = StreamFencedError(f"another broker holds the state of {self._name}")
            raise self._failure from fenced
        except WeirError as failed:
            self._full = failed if isinstance(failed, StorageFullError) else None
            if failed.what != self._said:  # log once for all retries
                self._said = failed.what
                log.warning("stream %s: its state could not be written, trying again: %s", self._name, failed)
            self._changed = {**changed, **self._changed}
            if self._writer is not None:
                await self._writer.abandon()
                self._writer = None
            await self._clock.sleep(self._settings.retry_pause_s)

    async def _append_or_begin(self, writer: LedgerWriter, payload: bytes) -> None:
        try:
            await self._append(writer, payload)
        except WriterFencedError:
            # The next holder closed the ledger, or a decommission did. The chain shows which.
            await self._chain.confirm()
            await self._begin_ledger()

    def _is_due_for_a_new_ledger(self) -> bool:
        if self._written_bytes <= self._settings.state_roll_bytes:
            return False
        return self._written_bytes > 4 * sum(map(len, self._values.values()))

    async def _begin_ledger(self) -> None:
        """Write the whole state to a new ledger, move the chain's pointer to it, then delete the old ledger. The
        state in the new ledger may have several entries; all of them take effect with the pointer."""
        writer = await self._context.ledgers.create(self._settings.quorum)
        self._written_bytes = 0
        for some in _in_entries(self._values):
            await self._append(writer, self._encoded(some))
        former = self._chain.value.state_ledger
        try:
            await self._chain.change(lambda chain: replace(chain, state_ledger=writer.ledger_id))
        except StreamFencedError:
            await writer.abandon()
            if not await self._chain.may_name(writer.ledger_id):
                await self._context.ledgers.delete(writer.ledger_id)
            raise
        before, self._writer = self._writer, writer
        if before is not None:
            await before.abandon()
        if former is not None:
            await self._context.ledgers.delete(former)

    def _encoded(self, changes: Mapping[str, bytes | None]) -> bytes:
        return encode_changes(changes, DEFLATED if self._context.features.uses(DEFLATED_STATE) else PLAIN)

    async def _append(self, writer: LedgerWriter, payload: bytes) -> None:
        await asyncio.gather(*(writer.append(payload) for _ in range(2 if self._twice else 1)))
        self._written_bytes += len(payload)

    def _failed(self, failure: BaseException) -> None:
        if self._failure is None:
            wrapped = StreamFencedError(f"the state of {self._name} failed: {failure!r}")
            self._failure = failure if isinstance(failure, WeirError) else wrapped
        self._on_failure(self._failure)


async def _load(reader: LedgerReader, values: dict[str, bytes]) -> list[EntryLostError]:
    """Apply all entries in order; return the lost ones. An entry is not lost if its duplicate is intact."""
    lost: list[EntryLostError] = []
    first, last = EntryId(0), await reader.last_confirmed()
    while first <= last:
        try:
            async with aclosing(reader.stream(first, last)) as chunks:
                async for entries in chunks:
                    for entry in entries:
                        _apply(values, decode_changes(entry.payload))
                    first = EntryId(entries[-1].entry_id + 1)
        except EntryLostError as failure:
            lost.append(failure)
            first = EntryId(failure.entry_id + 1)
    if not lost:
        return []
    gone = {failure.entry_id: None for failure in lost}
    twins = await _has_twins(reader, gone, last)
    lost = [
        failure for failure in lost if not twins or failure.entry_id ^ 1 in gone or failure.entry_id ^ 1 > last
    ]
    return [failure for failure in lost if await reader.leave_out(failure)]


async def _has_twins(reader: LedgerReader, gone: dict[int, None], last: int) -> bool:
    """Whether each entry of the ledger was written twice; the first intact pair decides."""
    for entry in range(0, last, 2):
        if entry not in gone and entry + 1 not in gone:
            one, other = await reader.read(EntryId(entry), EntryId(entry + 1))
            return one.payload == other.payload
    return last % 2 == 1 and len(gone) <= 1  # a single pair with one intact entry


def _in_entries(values: dict[str, bytes]) -> Iterator[dict[str, bytes]]:
    """Split the values into portions that fit one entry; yields at least one portion, which may be empty."""
    some: dict[str, bytes] = {}
    size = 0
    for key, value in list(values.items()):
        if some and size + len(value) > _MAX_ENTRY_BYTES:
            yield some
            some, size = {}, 0
        some[key] = value
        size += len(key) + len(value)
    yield some


def _bytes_of(change: bytes | Source | None) -> bytes | None:
    return change() if callable(change) else change


def _apply(values: dict[str, bytes], changes: dict[str, bytes | None]) -> None:
    for key, value in changes.items():
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
