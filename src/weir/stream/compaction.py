"""Compaction by key: the latest message of each key, kept in a ledger of its own and readable as a view.

A compaction reads the view as it is up to the end of the stream, notes each key's latest offset, and writes the
batches that still hold such a message to a new ledger, as they are and with their offsets. Which messages of them
are live is a bitmap beside it. The state names ledger, horizon and bitmap together, so a crash leaves either the
old view or the new one; a ledger that was being written is noted first, and goes when the stream is next opened.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from struct import Struct

from pyroaring import BitMap64

from weir.ledger.reader import LedgerReader
from weir.model.batch import Batch, BatchFlags
from weir.model.errors import LedgerNotFoundError, WireError
from weir.model.ids import EntryId, LedgerId
from weir.stream.context import StreamContext
from weir.stream.log import Stream
from weir.stream.positions import Places, find_entry
from weir.stream.state import StateLog
from weir.wire.batch import decode_batch, encode_batch

#: What a message of a batch is to a compaction: its key, and whether it has a value. No key: not kept.
Keyed = tuple[bytes | None, bool]
KeyedOf = Callable[[Batch], Sequence[Keyed]]

_DONE_KEY = "compacted"
_BEGUN_KEY = "compacting"
_RECORD = Struct("<BqqQ")
_BEGUN = Struct("<Q")
_VERSION = 1
_READ_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Compacted:
    """A finished compaction: everything before `horizon` is in the ledger, as far as it is live."""

    horizon: int = 0
    ledger_id: LedgerId | None = None
    entries: int = 0
    live: BitMap64 = field(default_factory=BitMap64)

    def to_bytes(self) -> bytes:
        ledger = -1 if self.ledger_id is None else self.ledger_id
        return _RECORD.pack(_VERSION, self.horizon, ledger, self.entries) + self.live.serialize()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Compacted":
        if len(data) < _RECORD.size:
            raise WireError("a compaction's record ends within its header")
        version, horizon, ledger, entries = _RECORD.unpack_from(data)
        if version != _VERSION:
            raise WireError(f"a compaction's record has unknown version {version}")
        try:
            live = BitMap64.deserialize(bytes(data[_RECORD.size :]))
        except (ValueError, MemoryError, OverflowError) as bad:
            raise WireError(f"a compaction's bitmap is malformed: {bad}") from bad
        return cls(horizon, None if ledger < 0 else LedgerId(ledger), entries, live)


def ledgers_in(state: StateLog) -> list[LedgerId]:
    """Every ledger of a finished or begun compaction that the state names."""
    done, begun = state.get(_DONE_KEY), state.get(_BEGUN_KEY)
    finished = None if done is None else Compacted.from_bytes(done).ledger_id
    return [
        *([] if finished is None else [finished]),
        *([] if begun is None else [LedgerId(_BEGUN.unpack(begun)[0])]),
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
        self.size_bytes = 0

    @classmethod
    async def open(cls, context: StreamContext, stream: Stream, state: StateLog) -> "CompactedView":
        data = state.get(_DONE_KEY)
        view = cls(context, stream, state, Compacted() if data is None else Compacted.from_bytes(data))
        await view._drop_unfinished()
        return view

    async def _drop_unfinished(self) -> None:
        begun = self._state.get(_BEGUN_KEY)
        if begun is not None:
            ledger_id = LedgerId(_BEGUN.unpack(begun)[0])
            if ledger_id != self._compacted.ledger_id:
                await self._context.ledgers.delete(ledger_id)
            self._state.delete(_BEGUN_KEY)

    # --- as a source of batches -------------------------------------------------------------------------

    @property
    def horizon(self) -> int:
        """Everything before this offset is compacted."""
        return self._compacted.horizon

    @property
    def start_offset(self) -> int:
        return 0 if self._compacted.entries else self._stream.start_offset

    @property
    def end_offset(self) -> int:
        return self._stream.end_offset

    def visible(self, batch: Batch) -> int | None:
        """The live messages of a batch, as bits; None for all of them."""
        if batch.base_offset >= self._compacted.horizon:
            return None
        mask = 0
        for offset in self._compacted.live & BitMap64(range(batch.base_offset, batch.end_offset)):
            mask |= 1 << (offset - batch.base_offset)
        return mask

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

    async def _read_compacted(self, compacted: Compacted, offset: int, max_bytes: int) -> list[Batch]:
        if compacted.ledger_id is None or not compacted.entries:
            return []
        if self._reader is None or self._reader.metadata.ledger_id != compacted.ledger_id:
            await self._close_reader()
            self._reader = await self._context.ledgers.open(compacted.ledger_id, recover=False)
            self._places = Places(0)
        reader = self._reader

        async def probe(entry: int) -> Batch:
            return decode_batch((await reader.read(EntryId(entry), EntryId(entry)))[0].payload)

        first = await find_entry(self._places, offset, compacted.entries, probe)
        found: list[Batch] = []
        size = 0
        while first < compacted.entries and size < max_bytes:
            for entry in await reader.read_some(EntryId(first), EntryId(compacted.entries - 1)):
                first = entry.entry_id + 1
                batch = decode_batch(entry.payload)
                if batch.end_offset > offset and (not found or size + len(batch) <= max_bytes):
                    found.append(batch)
                    size += len(batch)
                elif found:
                    return found
        return found

    # --- compacting -------------------------------------------------------------------------------------

    async def compact(self, keyed_of: KeyedOf) -> None:
        """Compact everything up to the end of the stream as it is now. One at a time."""
        horizon = self._stream.end_offset
        before = self._compacted
        if horizon == before.horizon:
            return
        live = await self._latest(horizon, keyed_of)
        writer = await self._context.ledgers.create(self._context.settings.quorum)
        self._state.put(_BEGUN_KEY, _BEGUN.pack(writer.ledger_id))
        await self._state.flush()
        entries = size = 0
        async with aclosing(self._batches(horizon)) as batches:
            async for batch in batches:
                if live.range_cardinality(batch.base_offset, batch.end_offset):
                    await writer.ready()
                    done = writer.append(b"".join(encode_batch(batch)))
                    done.add_done_callback(lambda done: done.cancelled() or done.exception())  # close() tells
                    entries += 1
                    size += len(batch)
        await writer.close()
        self._compacted = Compacted(horizon, writer.ledger_id, entries, live)
        self.size_bytes = size
        self._state.put(_DONE_KEY, self._compacted.to_bytes())
        self._state.delete(_BEGUN_KEY)
        await self._state.flush()
        if before.ledger_id is not None:
            await self._context.ledgers.delete(before.ledger_id)

    async def _latest(self, horizon: int, keyed_of: KeyedOf) -> BitMap64:
        """The offsets of each key's latest message that has a value."""
        latest: dict[bytes, int] = {}
        async with aclosing(self._batches(horizon)) as batches:
            async for batch in batches:
                visible = self.visible(batch)
                for index, (key, has_value) in enumerate(keyed_of(batch)):
                    if key is None or (visible is not None and not visible >> index & 1):
                        continue
                    if has_value:
                        latest[key] = batch.base_offset + index
                    else:
                        latest.pop(key, None)
        return BitMap64(latest.values())

    async def _batches(self, horizon: int) -> AsyncGenerator[Batch, None]:
        offset = 0
        while offset < horizon:
            for batch in await self.read(offset, _READ_BYTES):
                if batch.base_offset >= horizon:
                    return
                offset = batch.end_offset
                if not batch.flags & BatchFlags.CONTROL:
                    yield batch

    # --- the end ----------------------------------------------------------------------------------------

    async def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    async def close(self) -> None:
        await self._close_reader()

    async def delete(self) -> None:
        """Forget the compacted messages."""
        await self.close()
        await self._drop_unfinished()
        if self._compacted.ledger_id is not None:
            await self._context.ledgers.delete(self._compacted.ledger_id)
