"""What a stream has in memory only, from one holder to the next: the end that it has with it, and the batches.

Offsets that were never written may be named by the state: by a cursor, for one. So whatever is written to the
state says with it how far offsets were given out, and whoever opens the stream next begins there. A holder that
lets go in order writes the batches down, into a ledger of their own that the state names.
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

#: Where a state says how far offsets were given out, as a little-endian number.
MEMORY_END_KEY = "memory/end"
_LEDGER_KEY = "memory/ledger"
_NUMBER = Struct("<Q")


class Carried:
    """Of one stream, by its holder."""

    def __init__(self, context: StreamContext, stream: Stream, state: StateLog) -> None:
        self._context = context
        self._stream = stream
        self._state = state
        #: Whether something that was written down is wanted still.
        self.there = False
        state.with_each_write(MEMORY_END_KEY, self._end)

    def _end(self) -> bytes | None:
        """How far offsets were given out; nothing where the log itself says it."""
        end = self._stream.end_offset
        return _NUMBER.pack(end) if end > self._stream.written_to else None

    async def open(self, cursor: Cursor | None) -> None:
        """Go on where the former holder ended, with what it wrote down and the cursor has not acknowledged."""
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
        """What cannot be read is gone: nobody was promised more."""
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
            log.warning("transient messages of %s are gone: %s", self._stream.name, failed)
        return found

    async def save(self, mark: Callable[[], None]) -> None:
        """Write down what is in memory, for the next holder. `mark` has the cursor written with it: until then it
        may have moved, over messages in memory, and nothing of that was written."""
        try:
            if self._stream.end_offset > self._stream.written_to:  # what is on its way is in memory then
                await self._stream.write_gap()
            if self._stream.unwritten and not self._stream.unwritten.all_carried:
                batches = self._stream.unwritten.carry()
                mark()
                await self._replace(await self._write(batches))
        except WeirError as failed:
            log.warning("transient messages of %s stay behind: %s", self._stream.name, failed)

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
        """Nothing of what the former holder wrote down is wanted any more: that is durable first."""
        ledger_id = self._ledger_id()
        if ledger_id is None:
            return
        try:
            await self._state.flush()
            self._state.delete(_LEDGER_KEY)
            await self._state.flush()
            await self._context.ledgers.delete(ledger_id)
        except WeirError as failed:  # whoever has the stream next finds that nothing of it is wanted
            log.info("what was carried over of %s is not deleted yet: %s", self._stream.name, failed)


def ledgers_in(state: StateLog) -> list[LedgerId]:
    """The ledger that the state names."""
    found = state.get(_LEDGER_KEY)
    return [] if found is None else [LedgerId(_NUMBER.unpack(found)[0])]
