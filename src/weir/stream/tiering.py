"""Tiered storage of one stream: copies its closed ledgers to the lake, in crash-safe steps.

    copy      write an object under a unique name, read it back, then record it in the chain
    let go    record GOING in the chain: reads use the copy from now on; delete the ledger; record GONE
    sweep     delete objects that the chain does not name and never will

Only the holder changes the chain, by compare-and-set. A broker that has lost the stream changes nothing, and
deletes only objects that it wrote itself.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import NamedTuple

from weir.ledger.client import LedgerClient
from weir.ledger.reader import LedgerReader
from weir.meta import keys
from weir.meta.update import read
from weir.model.errors import ObjectStoreError, SegmentDamagedError, StreamFencedError, WeirError
from weir.model.ids import Buffer, LedgerId
from weir.model.stream import Chain, LedgerFate, Segment, SegmentStore, Span
from weir.stream.chain import CHAIN, HeldChain
from weir.stream.context import StreamContext
from weir.stream.segments import SegmentReads
from weir.wire.segment import SegmentEncoder


class Copied(NamedTuple):
    """Destination of a copy: the index of the store in the chain, the store, and the object name."""

    number: int
    place: SegmentStore
    name: str


async def copy_ledger(ledgers: LedgerClient, reads: SegmentReads, span: Span, to: Copied) -> Segment:
    """Copy a closed ledger entry by entry, read the durable object back and verify its checksums. EntryLostError
    if the ledger has lost entries: it then stays in place, readable where intact. A failure leaves no object."""
    store = reads.store(to.place)
    reader = await ledgers.open(span.ledger_id, recover=False)
    try:
        if not reader.closed:  # the writer has not recorded the close in the ledger's metadata
            await reader.close()
            reader = await ledgers.open(span.ledger_id, recover=True)
        encoder = SegmentEncoder(span.ledger_id, span.first_offset)
        size = await store.put(to.name, _pieces(reader, encoder))
    finally:
        await reader.close()
    segment = Segment(to.number, to.name, size)
    try:
        if size != encoder.size_bytes or encoder.end_offset != span.end_offset:
            what = f"offset {encoder.end_offset} of {span.end_offset}, {size} bytes of {encoder.size_bytes}"
            raise SegmentDamagedError(f"{to.place.url}/{to.name} ends too early: {what}")
        await reads.check(to.place, span, segment)
    except BaseException:
        await store.delete(to.name)
        raise
    return segment


async def _pieces(reader: LedgerReader, encoder: SegmentEncoder) -> AsyncIterator[Buffer]:
    for piece in encoder.begin():
        yield piece
    async with aclosing(reader.stream()) as chunks:
        async for chunk in chunks:
            for entry in chunk:
                for piece in encoder.add(entry.payload):
                    yield piece
    for piece in encoder.end():
        yield piece


log = logging.getLogger(__name__)

_SUFFIX = ".segment"


class StreamTiering:
    """Tiering of one stream; belongs to the stream's holder. One step runs at a time."""

    def __init__(
        self,
        context: StreamContext,
        name: str,
        chain: HeldChain,
        ledgers_left: Callable[[Chain], Awaitable[None]],
    ) -> None:
        """`ledgers_left` closes the readers of ledgers before their deletion."""
        self._context = context
        self._name = name
        self._chain = chain
        self._ledgers_left = ledgers_left
        self._step = asyncio.Lock()
        #: Whether stores may have objects that the chain does not name.
        self._unswept = True

    async def copy(self, ledger_id: LedgerId, folder: SegmentStore) -> None:
        """Copy a closed ledger to the lake, under a folder for streams of this name. No effect if a copy exists or
        the ledger was trimmed."""
        async with self._step:
            await self._use(folder)
            chain = self._chain.value
            span = chain.span_of(ledger_id)
            if span is None or not span.closed or span.segment is not None:
                return
            number = _store_under(chain, folder)
            token = f"{self._context.runtime.rng.getrandbits(64):016x}"
            to = Copied(number, chain.stores[number], f"{ledger_id}-{token}{_SUFFIX}")
            self._unswept = True
            self._context.reached("named")
            try:
                made = await copy_ledger(self._context.ledgers, self._context.segments, span, to)
                self._context.reached("copied")
                await self._chain.change(lambda now: now.with_segment(ledger_id, made))
            except StreamFencedError:
                await self._forsake(to)
                raise
            self._context.reached("kept")
            if _segment_named(self._chain.value, to.name) is None:  # trimmed meanwhile
                await self._context.segments.store(to.place).delete(to.name)

    async def _use(self, folder: SegmentStore) -> None:
        """Add a unique store under the folder to the chain before the first object: deleting the stream clears it,
        and a stream that is created again under the same name gets another one."""
        chain = self._chain.value
        number = _store_under(chain, folder)
        if number < 0:
            token = f"{self._context.runtime.rng.getrandbits(64):016x}"
            place = SegmentStore(f"{folder.url}/{token}", folder.options)
            await self._chain.change(lambda now: now.with_store(place))
        elif dict(chain.stores[number].options) != dict(folder.options):  # the configured options changed
            moved = replace(chain.stores[number], options=folder.options)
            stores = (*chain.stores[:number], moved, *chain.stores[number + 1 :])
            await self._chain.change(lambda now: replace(now, stores=stores))

    async def _forsake(self, written: Copied) -> None:
        """Delete the object of a copy after this broker lost the stream, unless the chain names it: the last
        change may have succeeded with its response lost, and the object then belongs to the next holder."""
        with suppress(WeirError):
            record = await read(self._context.meta, keys.stream(self._name), CHAIN)
            if record is None or _segment_named(record.value, written.name) is None:
                await self._context.segments.store(written.place).delete(written.name)

    async def let_go(self, ledger_id: LedgerId) -> None:
        """Delete a ledger that has a copy in the lake; reads use the copy from now on."""
        async with self._step:
            span = self._chain.value.span_of(ledger_id)
            if span is None or span.segment is None or span.segment.ledger is LedgerFate.GONE:
                return
            going = replace(span.segment, ledger=LedgerFate.GOING)
            if span.segment != going:
                await self._chain.change(lambda now: now.with_segment(ledger_id, going))
            self._context.reached("going")
            await self._ledgers_left(self._chain.value)
            await self._context.ledgers.delete(ledger_id)
            self._context.reached("deleted")
            gone = replace(going, ledger=LedgerFate.GONE)
            await self._chain.change(lambda now: now.with_segment(ledger_id, gone))
            self._context.reached("gone")

    @property
    def going(self) -> list[LedgerId]:
        """Ledgers with an unfinished deletion, for example after the death of a holder."""
        spans = self._chain.value.spans
        return [s.ledger_id for s in spans if s.segment is not None and s.segment.ledger is LedgerFate.GOING]

    async def delete_trimmed(self, trimmed: list[Span]) -> None:
        """Delete ledgers and objects of spans that left the chain. `sweep` retries failed deletions of objects."""
        stores = self._chain.value.stores
        for span in trimmed:
            if span.segment is None or span.segment.ledger is not LedgerFate.GONE:
                await self._context.ledgers.delete(span.ledger_id)
        for span in trimmed:
            if span.segment is not None:
                place = stores[span.segment.store]
                try:
                    self._context.segments.forget(place, span.segment)
                    await self._context.segments.store(place).delete(span.segment.name)
                except ObjectStoreError as failed:
                    self._unswept = True
                    log.warning("stream %s: object not deleted, a later sweep retries: %s", self._name, failed)

    async def sweep(self) -> int:
        """Delete objects that the chain does not name; return their number. Safe also for a broker that has lost
        the stream without noticing: ledger ids only grow, and a segment never changes."""
        async with self._step:
            chain, deleted = self._chain.value, 0
            if not self._unswept:
                return 0
            for place in chain.stores:
                store = self._context.segments.store(place)
                for name in await store.list():
                    if _is_orphan(chain, name):
                        await store.delete(name)
                        deleted += 1
            self._unswept = False
            return deleted

    def sweep_again(self) -> None:
        self._unswept = True


def _store_under(chain: Chain, folder: SegmentStore) -> int:
    """Index of the chain's store in the folder; -1 if none is."""
    return next((at for at, s in enumerate(chain.stores) if s.url.rpartition("/")[0] == folder.url), -1)


def _segment_named(chain: Chain, name: str) -> Segment | None:
    found = (span.segment for span in chain.spans if span.segment is not None)
    return next((segment for segment in found if segment.name == name), None)


def _is_orphan(chain: Chain, name: str) -> bool:
    """Whether the chain does not name the object and never will."""
    number = name.partition("-")[0]
    if _SUFFIX not in name or not number.isdecimal() or not chain.spans:
        return False
    span = chain.span_of(int(number))
    if span is None:
        return int(number) < chain.spans[-1].ledger_id
    return span.segment is not None and span.segment.name != name
