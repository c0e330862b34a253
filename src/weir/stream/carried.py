"""Handover of a stream's in-memory batches, and of the end offset that includes them, to the next holder.

The state may refer to offsets that were never written, for example in a cursor. Therefore each write of the state
includes the end of the assigned offsets, and the next holder of the stream begins there. A holder that closes the
stream in order writes the batches to a separate ledger, whose id the state contains.
"""

import logging
from collections.abc import Callable
from contextlib import aclosing
from struct import Struct

from weir.model.batch import Batch
from weir.model.errors import LedgerNotFoundError, WeirError
from weir.model.ids import EntryId, LedgerId
from weir.stream.context import StreamContext
from weir.stream.cursor import Cursor
from weir.stream.log import Stream
from weir.stream.state_log import StateLog
from weir.wire.batch import decode_batch, encode_batch

log = logging.getLogger(__name__)

#: State key of the end of the assigned offsets, a little-endian number.
MEMORY_END_KEY = "memory/end"
_LEDGER_KEY = "memory/ledger"
_NUMBER = Struct("<Q")


class Carried:
    """Saves and restores the in-memory batches of one stream; belongs to the stream's holder."""

    def __init__(self, context: StreamContext, stream: Stream, state: StateLog) -> None:
        self._context = context
        self._stream = stream
        self._state = state
        #: Whether the state names a ledger of saved batches.
        self.there = False
        state.with_each_write(MEMORY_END_KEY, self._end)

    def _end(self) -> bytes | None:
        """The end of the assigned offsets; None if it equals the end of the log."""
        end = self._stream.end_offset
        return _NUMBER.pack(end) if end > self._stream.written_to else None

    async def open(self, cursor: Cursor | None) -> None:
        """Start at the former holder's end, with the batches that it saved and the cursor has not acknowledged."""
        end = self._state.get(MEMORY_END_KEY)
        ledger_id = self._ledger_id()
        if end is None and ledger_id is None:
            return
        self.there = ledger_id is not None
        batches = [] if ledger_id is None else await self._load(ledger_id)
        known = self._stream.end_offset if end is None else _NUMBER.unpack(end)[0]
        wanted = [
            batch
            for batch in batches
            if cursor is not None
            and batch.end_offset <= max(known, self._stream.end_offset)
            and not cursor.all_acked(batch.base_offset, batch.end_offset)
        ]
        self._stream.begin_at(known, wanted)

    def _ledger_id(self) -> LedgerId | None:
        found = ledgers_in(self._state)
        return found[0] if found else None

    async def _load(self, ledger_id: LedgerId) -> list[Batch]:
        """Read the saved batches. Unreadable ones are lost: transient messages have no durability promise."""
        found: list[Batch] = []
        try:
            reader = await self._context.ledgers.open(ledger_id, recover=True)
            try:
                last = await reader.last_confirmed()
                if last >= 0:
                    async with aclosing(reader.stream(EntryId(0), last)) as chunks:
                        async for entries in chunks:
                            found += [decode_batch(bytes(entry.payload)) for entry in entries]
            finally:
                await reader.close()
        except LedgerNotFoundError:
            pass
        except WeirError as failed:
            log.warning(
                "stream %s: transient messages of the former holder are lost: %s", self._stream.name, failed
            )
        return found

    async def save(self, mark: Callable[[], None]) -> None:
        """Write the in-memory batches to a ledger for the next holder. `mark` marks the cursor for the same write:
        until then it may have moved over in-memory messages without any write."""
        try:
            if self._stream.end_offset > self._stream.written_to:  # pending appends are in memory after this
                await self._stream.write_gap()
            if self._stream.unwritten and not self._stream.unwritten.all_carried:
                batches = self._stream.unwritten.carry()
                mark()
                await self._replace(await self._write(batches))
        except WeirError as failed:
            log.warning("stream %s: transient messages were not handed over: %s", self._stream.name, failed)

    async def _replace(self, ledger_id: LedgerId) -> None:
        before = self._ledger_id()
        self._state.put(_LEDGER_KEY, _NUMBER.pack(ledger_id))
        await self._state.flush()
        if before is not None:
            await self._context.ledgers.delete(before)

    async def _write(self, batches: list[Batch]) -> LedgerId:
        writer = await self._context.ledgers.create(self._context.settings.quorum)
        for batch in batches:
            await writer.wait_capacity()
            writer.append(b"".join(encode_batch(batch))).add_done_callback(lambda done: done.exception())
        await writer.close()
        return writer.ledger_id

    async def forget(self) -> None:
        """Delete the former holder's saved batches, once the state without them is durable."""
        ledger_id = self._ledger_id()
        if ledger_id is None:
            return
        try:
            await self._state.flush()
            self._state.delete(_LEDGER_KEY)
            await self._state.flush()
            await self._context.ledgers.delete(ledger_id)
        except WeirError as failed:  # the next holder finds all of them acknowledged
            log.info(
                "stream %s: handed-over transient messages are not deleted yet: %s", self._stream.name, failed
            )


def ledgers_in(state: StateLog) -> list[LedgerId]:
    """The ledger of saved batches that the state names, if any."""
    found = state.get(_LEDGER_KEY)
    return [] if found is None else [LedgerId(_NUMBER.unpack(found)[0])]
