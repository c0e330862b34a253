"""Compaction by key: the latest message of each key, kept in a ledger of its own and readable as a view.

A compaction reads the view as it is up to a horizon, notes each key's latest offset, and writes the batches that
still hold such a message to a new ledger, as they are and with their offsets. Which messages of them are live is a
bitmap beside it. The state names ledger, horizon and bitmap together, so a crash leaves either the old view or the
new one; a ledger that was being written, or is no longer needed, is noted too, and goes when the stream is next
opened.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from struct import Struct

from pyroaring import BitMap64

from weir.ledger.reader import LedgerReader
from weir.model.batch import Batch, BatchFlags
from weir.model.check import check
from weir.model.errors import EntryLostError, LedgerNotFoundError
from weir.model.ids import EntryId, LedgerId, value
from weir.stream.compaction_record import Compacted, next_generations
from weir.stream.context import StreamContext
from weir.stream.history import Places, find_entry, find_time, last_whole, stand_in
from weir.stream.log import Stream
from weir.stream.state_log import StateLog
from weir.wire.batch import decode_batch, encode_batch
from weir.wire.formats.format import Keyed

#: What a message of a batch is to a compaction: its key, and whether it has a value. No key: not kept.
KeyedOf = Callable[[Batch], Sequence[Keyed]]

_DONE_KEY = "compacted"
#: Names a ledger that is to go: one that is being written, or one that a newer one has replaced.
_LEFT_KEY = "compacting"
_LEFT = Struct("<Q")
#: Looked at before others get a turn.
_READ_BYTES = 64 * 1024


def _none(batch: Batch) -> bool:
    return False


@value
class Rules:
    """How far to compact, and what else goes."""

    #: Not beyond this offset; None: up to the end.
    horizon: int | None = None
    #: How long a message without a value is seen after the compaction that found it; 0: it goes at once.
    tombstone_ms: int = 0
    #: Whether the topic compacts itself: its readers see the view, and the log behind it may go.
    own: bool = False
    #: Whether a batch is part of an aborted transaction: nobody ever saw it, and nobody shall.
    aborted: Callable[[Batch], bool] = _none


def ledgers_in(state: StateLog) -> list[LedgerId]:
    """Every ledger of a finished or begun compaction that the state names."""
    done, left = state.get(_DONE_KEY), state.get(_LEFT_KEY)
    finished = None if done is None else Compacted.from_bytes(done).ledger_id
    return [
        *([] if finished is None else [finished]),
        *([] if left is None else [LedgerId(_LEFT.unpack(left)[0])]),
    ]


class CompactedView:
    """A stream of which only the latest message of each key is left, up to the last compaction; whole after it.

    Made by `open` by whoever holds the stream and its state."""

    def __init__(self, context: StreamContext, stream: Stream, state: StateLog, compacted: Compacted) -> None:
        self._context = context
        self._stream = stream
        self._state = state
        self._compacted = compacted
        self._reader: LedgerReader | None = None
        self._places = Places(0)

    @classmethod
    async def open(cls, context: StreamContext, stream: Stream, state: StateLog) -> "CompactedView":
        data = state.get(_DONE_KEY)
        view = cls(context, stream, state, Compacted() if data is None else Compacted.from_bytes(data))
        await view._drop_left()
        return view

    async def _drop_left(self) -> None:
        left = self._state.get(_LEFT_KEY)
        if left is not None:
            ledger_id = LedgerId(_LEFT.unpack(left)[0])
            if ledger_id != self._compacted.ledger_id:
                await self._context.ledgers.delete(ledger_id)
            self._state.delete(_LEFT_KEY)

    # --- what it is -------------------------------------------------------------------------------------

    @property
    def compacted(self) -> Compacted:
        """The last compaction."""
        return self._compacted

    @property
    def horizon(self) -> int:
        """Everything before this offset is compacted."""
        return self._compacted.horizon

    @property
    def size_bytes(self) -> int:
        """Of the compacted messages."""
        return self._compacted.size_bytes

    @property
    def start_offset(self) -> int:
        """Compaction leaves gaps and no end of them: the start stays where the stream's was, until what is there
        is forgotten on purpose."""
        return self._compacted.start if self._compacted.horizon else self._stream.start_offset

    @property
    def end_offset(self) -> int:
        return self._stream.end_offset

    # --- as a source of batches -------------------------------------------------------------------------

    def visible(self, batch: Batch) -> int | None:
        """The live messages of a batch, as bits; None for all of them."""
        if batch.base_offset >= self._compacted.horizon:
            return None
        return self._compacted.mask(batch.base_offset, batch.end_offset)

    def read_cached(self, offset: int, max_bytes: int) -> list[Batch] | None:
        return self._stream.read_cached(offset, max_bytes) if offset >= self._compacted.horizon else None

    async def read(self, offset: int, max_bytes: int) -> list[Batch]:
        """Batches from the one that holds `offset`, or from the first after it, on."""
        while offset < (compacted := self._compacted).horizon:
            try:
                found = await self._read_compacted(compacted, offset, max_bytes)
            except LedgerNotFoundError:
                if compacted is self._compacted:
                    raise
                continue  # compacted anew while it was being read: look again
            if found:
                return found
            offset = compacted.horizon
        return await self._stream.read(max(offset, self._stream.start_offset), max_bytes)

    async def offset_at(self, moment_ms: int) -> int:
        """The first offset appended at or after the moment, and still there; the end if there is none."""
        while (compacted := self._compacted).entries:
            try:
                found = await self._compacted_at(compacted, moment_ms)
            except LedgerNotFoundError:
                if compacted is self._compacted:
                    raise
                continue
            if found is not None:
                return max(found, compacted.start)
            break
        return max(await self._stream.offset_at(moment_ms), self.horizon)

    async def _compacted_at(self, compacted: Compacted, moment_ms: int) -> int | None:
        reader = await self._open_reader(compacted)
        entry = await find_time(moment_ms, compacted.entries, lambda entry: _batch_at(reader, entry))
        return (await _batch_at(reader, entry)).base_offset if entry < compacted.entries else None

    async def _read_compacted(self, compacted: Compacted, offset: int, max_bytes: int) -> list[Batch]:
        if not compacted.entries:
            return []
        reader = await self._open_reader(compacted)
        first = await find_entry(self._places, offset, compacted.entries, lambda entry: _batch_at(reader, entry))
        last = EntryId(compacted.entries - 1)
        found: list[Batch] = []
        size = 0
        while first < compacted.entries and size < max_bytes:
            try:
                entries = await reader.read_some(EntryId(first), last, max_bytes - size)
            except EntryLostError as lost:
                first += await reader.leave_out(lost)
                continue
            for entry in entries:
                first = entry.entry_id + 1
                batch = decode_batch(entry.payload)
                if batch.end_offset > offset and (not found or size + len(batch) <= max_bytes):
                    found.append(batch)
                    size += len(batch)
                elif found:
                    return found
        return found

    async def _open_reader(self, compacted: Compacted) -> LedgerReader:
        """One for all who read; whoever still has an older one can go on with it for as long as its ledger is
        there."""
        reader = self._reader
        if reader is not None and reader.ledger_id == compacted.ledger_id:
            return reader
        if compacted.ledger_id is None:
            raise LedgerNotFoundError("the compacted messages were forgotten")
        opened = await self._context.ledgers.open(compacted.ledger_id, recover=False)
        before, self._reader, self._places = self._reader, opened, Places(0)
        if before is not None:
            await before.close()
        return opened

    # --- compacting -------------------------------------------------------------------------------------

    async def compact(self, keyed_of: KeyedOf, rules: Rules | None = None) -> None:
        """Compact everything up to the horizon of the rules. One at a time."""
        await self._drop_left()  # by one that failed
        rules = rules or Rules()
        now_ms = self._context.runtime.clock.wall_ms()
        before, end = self._compacted, self._stream.end_offset
        horizon = max(before.horizon, end if rules.horizon is None else min(rules.horizon, end))
        expires_ms = before.tombstone_end_ms(rules.tombstone_ms)
        if horizon == before.horizon and (expires_ms is None or expires_ms > now_ms):
            return
        values, gone = await self._latest(horizon, keyed_of, rules)
        tombstones = next_generations(before.tombstones, gone, now_ms, rules.tombstone_ms)
        live = values
        for _, offsets in tombstones:
            live |= offsets
        ledger_id, entries, size = await self._write(horizon, live)
        start = self.start_offset  # the log may have been trimmed meanwhile
        await self._replace(
            Compacted(horizon, ledger_id, entries, live, start, size, now_ms, tombstones, rules.own)
        )

    async def _latest(self, horizon: int, keyed_of: KeyedOf, rules: Rules) -> tuple[BitMap64, BitMap64]:
        """The offsets of each key's latest message: of those with a value, and of those without."""
        latest: dict[bytes, int] = {}
        gone: dict[bytes, int] = {}
        async with aclosing(self._batches(horizon)) as batches:
            async for batch in batches:
                if batch.base_offset >= self.horizon and rules.aborted(batch):
                    continue
                visible = self.visible(batch)
                for index, (key, has_value) in enumerate(keyed_of(batch)):
                    if key is None or (visible is not None and not visible >> index & 1):
                        continue
                    (latest if has_value else gone)[key] = batch.base_offset + index
                    (gone if has_value else latest).pop(key, None)
        return BitMap64(latest.values()), BitMap64(gone.values())

    async def _write(self, horizon: int, live: BitMap64) -> tuple[LedgerId, int, int]:
        """The batches that hold a live message, to a new ledger; how many they are, and their bytes."""
        writer = await self._context.ledgers.create(self._context.settings.quorum)
        self._state.put(_LEFT_KEY, _LEFT.pack(writer.ledger_id))
        await self._state.flush()
        entries = size = 0
        last: asyncio.Future[EntryId] | None = None
        async with aclosing(self._batches(horizon)) as batches:
            async for batch in batches:
                if live.range_cardinality(batch.base_offset, batch.end_offset):
                    await writer.wait_capacity()
                    last = writer.append(b"".join(encode_batch(batch)))
                    last.add_done_callback(lambda done: done.cancelled() or done.exception())
                    entries += 1
                    size += len(batch)
        if last is not None:  # close() does not tell: it ends the ledger behind what is stored
            await last
        await writer.close()
        return writer.ledger_id, entries, size

    async def _batches(self, horizon: int) -> AsyncGenerator[Batch, None]:
        offset = self.start_offset
        while offset < horizon:
            for batch in await self.read(offset, _READ_BYTES):
                if batch.base_offset >= horizon:
                    return
                offset = batch.end_offset
                if not batch.flags & BatchFlags.UNSEEN:
                    yield batch
            await self._context.runtime.clock.sleep(0)

    async def _replace(self, compacted: Compacted) -> None:
        """This is the view from now on; the ledger that it no longer needs goes."""
        before = self._compacted
        if compacted.horizon:  # else there is no view any more (`whole_again`)
            check(compacted.horizon >= before.horizon, "what is compacted stays compacted")
            check(compacted.start >= before.start, "what a compacted view has forgotten never comes back")
        self._compacted = compacted
        self._state.put(_DONE_KEY, compacted.to_bytes())
        if before.ledger_id is not None and before.ledger_id != compacted.ledger_id:
            self._state.put(_LEFT_KEY, _LEFT.pack(before.ledger_id))
        else:
            self._state.delete(_LEFT_KEY)
        await self._state.flush()
        await self._drop_left()

    # --- forgetting, and the end ------------------------------------------------------------------------

    async def forget_before(self, offset: int) -> None:
        """What is before the offset is seen no longer, for good. Not while it is being compacted."""
        compacted = self._compacted
        if not compacted.horizon or offset <= compacted.start:
            return
        if offset < compacted.horizon:
            await self._replace(replace(compacted, start=offset))
        else:
            left = Compacted(compacted.horizon, start=offset, done_ms=compacted.done_ms, own=compacted.own)
            await self._replace(left)

    async def whole_again(self) -> None:
        """The log behind the horizon is gone, and so is everything that was compacted: there is no view but it."""
        await self._replace(Compacted())

    async def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    async def close(self) -> None:
        await self._close_reader()

    async def delete(self) -> None:
        """Forget the compacted messages."""
        await self.close()
        await self._drop_left()
        if self._compacted.ledger_id is not None:
            await self._context.ledgers.delete(self._compacted.ledger_id)


async def _batch_at(reader: LedgerReader, entry: int) -> Batch:
    """The batch of an entry; for one that is lost, a stand-in right behind the last whole one before it."""
    found, batch = await last_whole(reader, entry)
    if batch is None:
        return stand_in(0, 1, 0)
    return batch if found == entry else stand_in(batch.end_offset, 1, batch.append_ms)
