"""Compaction by key: a separate ledger with the latest message of each key, readable as a view of the stream.

A compaction reads the current view up to a horizon, determines each key's latest offset, and copies the batches
with such a message to a new ledger, unchanged and with their offsets. A bitmap has the live messages of these
batches. The state contains ledger, horizon and bitmap in one value, so a crash leaves either the old view or the
new one. It also names an incomplete or replaced ledger, which the next open of the stream deletes.
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

#: The key of each message of a batch, and whether it has a value. Compaction drops messages without a key.
KeyedOf = Callable[[Batch], Sequence[Keyed]]

_DONE_KEY = "compacted"
#: State key of a ledger to delete: an incomplete one, or one that a newer one replaced.
_LEFT_KEY = "compacting"
_LEFT = Struct("<Q")
#: Bytes that a compaction reads before it yields to other tasks.
_READ_BYTES = 64 * 1024


def _none(batch: Batch) -> bool:
    return False


@value
class Rules:
    """The horizon of a compaction, and which messages it drops besides outdated ones."""

    #: Compact up to this offset; None: up to the end.
    horizon: int | None = None
    #: Retention of a tombstone after the compaction that found it; 0: dropped at once.
    tombstone_ms: int = 0
    #: Whether the topic itself is compacted: all readers get the view, and retention may trim the log behind it.
    own: bool = False
    #: Whether a batch is part of an aborted transaction, which stays invisible.
    aborted: Callable[[Batch], bool] = _none


def ledgers_in(state: StateLog) -> list[LedgerId]:
    """The ledgers of finished and unfinished compactions that the state names."""
    done, left = state.get(_DONE_KEY), state.get(_LEFT_KEY)
    finished = None if done is None else Compacted.from_bytes(done).ledger_id
    return [
        *([] if finished is None else [finished]),
        *([] if left is None else [LedgerId(_LEFT.unpack(left)[0])]),
    ]


class CompactedView:
    """A stream with only the latest message of each key up to the horizon, and all messages after it.

    The holder of the stream and its state creates it with `open`."""

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

    # --- properties -------------------------------------------------------------------------------------

    @property
    def compacted(self) -> Compacted:
        """The last compaction."""
        return self._compacted

    @property
    def horizon(self) -> int:
        """The offset before which everything is compacted."""
        return self._compacted.horizon

    @property
    def size_bytes(self) -> int:
        """Size of the compacted messages."""
        return self._compacted.size_bytes

    @property
    def start_offset(self) -> int:
        """The first offset of the view: the stream's start at the first compaction, until `forget_before` moves
        it. Compaction itself leaves gaps but does not move the start."""
        return self._compacted.start if self._compacted.horizon else self._stream.start_offset

    @property
    def end_offset(self) -> int:
        return self._stream.end_offset

    # --- as a source of batches -------------------------------------------------------------------------

    def visible(self, batch: Batch) -> int | None:
        """Bit mask of the live messages of a batch; None if all are live."""
        if batch.base_offset >= self._compacted.horizon:
            return None
        return self._compacted.mask(batch.base_offset, batch.end_offset)

    def read_cached(self, offset: int, max_bytes: int) -> list[Batch] | None:
        return self._stream.read_cached(offset, max_bytes) if offset >= self._compacted.horizon else None

    async def read(self, offset: int, max_bytes: int) -> list[Batch]:
        """Read batches, starting with the one that contains `offset` or else the first one after it."""
        while offset < (compacted := self._compacted).horizon:
            try:
                found = await self._read_compacted(compacted, offset, max_bytes)
            except LedgerNotFoundError:
                if compacted is self._compacted:
                    raise
                continue  # a newer compaction replaced the ledger during the read: retry
            if found:
                return found
            offset = compacted.horizon
        return await self._stream.read(max(offset, self._stream.start_offset), max_bytes)

    async def offset_at(self, moment_ms: int) -> int:
        """The first live offset with an append time at or after the moment; the end if none has."""
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
        """The shared reader of the compacted ledger. Reads with an older reader continue until its ledger is
        deleted."""
        reader = self._reader
        if reader is not None and reader.ledger_id == compacted.ledger_id:
            return reader
        if compacted.ledger_id is None:
            raise LedgerNotFoundError("the compacted messages were deleted")
        opened = await self._context.ledgers.open(compacted.ledger_id, recover=False)
        before, self._reader, self._places = self._reader, opened, Places(0)
        if before is not None:
            await before.close()
        return opened

    # --- compacting -------------------------------------------------------------------------------------

    async def compact(self, keyed_of: KeyedOf, rules: Rules | None = None) -> None:
        """Compact everything up to the horizon of the rules. Do not call it concurrently."""
        await self._drop_left()  # the ledger of a failed compaction
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
        start = self.start_offset  # a trim may have moved it during the compaction
        await self._replace(
            Compacted(horizon, ledger_id, entries, live, start, size, now_ms, tombstones, rules.own)
        )

    async def _latest(self, horizon: int, keyed_of: KeyedOf, rules: Rules) -> tuple[BitMap64, BitMap64]:
        """The offsets of each key's latest message: the ones with a value, and the tombstones."""
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
        """Write the batches with a live message to a new ledger; return its id, their count and their bytes."""
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
        if last is not None:  # close() reports no failed append: it closes the ledger after the last stored entry
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
        """Make this compaction the current view, and delete the ledger that it replaces."""
        before = self._compacted
        if compacted.horizon:  # 0: the view ends (`whole_again`)
            check(compacted.horizon >= before.horizon, "the horizon of a compacted view never decreases")
            check(compacted.start >= before.start, "the start of a compacted view never decreases")
        self._compacted = compacted
        self._state.put(_DONE_KEY, compacted.to_bytes())
        if before.ledger_id is not None and before.ledger_id != compacted.ledger_id:
            self._state.put(_LEFT_KEY, _LEFT.pack(before.ledger_id))
        else:
            self._state.delete(_LEFT_KEY)
        await self._state.flush()
        await self._drop_left()

    # --- trimming, closing, deleting --------------------------------------------------------------------

    async def forget_before(self, offset: int) -> None:
        """Trim the view to start at the offset. Not during a compaction."""
        compacted = self._compacted
        if not compacted.horizon or offset <= compacted.start:
            return
        if offset < compacted.horizon:
            await self._replace(replace(compacted, start=offset))
        else:
            left = Compacted(compacted.horizon, start=offset, done_ms=compacted.done_ms, own=compacted.own)
            await self._replace(left)

    async def whole_again(self) -> None:
        """End the view: all compacted messages are trimmed, and readers get the log as it is."""
        await self._replace(Compacted())

    async def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    async def close(self) -> None:
        await self._close_reader()

    async def delete(self) -> None:
        """Close the view and delete the compacted messages."""
        await self.close()
        await self._drop_left()
        if self._compacted.ledger_id is not None:
            await self._context.ledgers.delete(self._compacted.ledger_id)


async def _batch_at(reader: LedgerReader, entry: int) -> Batch:
    """The batch of an entry; for a lost entry, a stand-in directly after the last intact batch before it."""
    found, batch = await last_whole(reader, entry)
    if batch is None:
        return stand_in(0, 1, 0)
    return batch if found == entry else stand_in(batch.end_offset, 1, batch.append_ms)
