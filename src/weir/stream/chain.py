"""The chain record of a stream under one holder: changes by compare-and-set until another broker takes over.

A takeover after a handover reads nothing and makes one metadata write.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from weir.meta import keys
from weir.meta.update import Codec, VersionedValue, create, read, update
from weir.model.check import check
from weir.model.errors import (
    MetaConflictError,
    MetaError,
    MetaKeyMissingError,
    StreamFencedError,
    StreamNotFoundError,
    WeirError,
)
from weir.model.ids import LedgerId
from weir.model.stream import Chain
from weir.stream.context import StreamContext
from weir.stream.handover import Left, Taken
from weir.wire.stream import decode_chain, encode_chain

CHAIN: Codec[Chain] = Codec(encode_chain, decode_chain)


class HeldChain:
    """A stream's chain under one epoch. After a takeover by another broker, changes raise StreamFencedError."""

    def __init__(self, context: StreamContext, name: str, record: VersionedValue[Chain]) -> None:
        self._context = context
        self._name = name
        self._record = record
        # One change at a time: a trim and a roll of the same holder must not fence each other.
        self._changing = asyncio.Lock()

    @classmethod
    async def take(
        cls, context: StreamContext, name: str, *, create_missing: bool, leader: int = 0
    ) -> "HeldChain":
        """Become the holder: increment the epoch, so that no older holder can change the chain. The leader epoch
        becomes `leader`, or stays if it is later already."""
        key = keys.stream(name)
        record = await read(context.meta, key, CHAIN)
        if record is not None and record.value.doomed is not None:  # a deletion was interrupted
            await _sweep(context, record)
            record = await read(context.meta, key, CHAIN)
        if record is None:
            if not create_missing:
                raise StreamNotFoundError(f"stream {name} does not exist")
            first = Chain(epoch=1, leader=leader)
            with suppress(MetaConflictError):  # another broker created it at the same time; take it over
                return cls(context, name, await create(context.meta, key, CHAIN, first, runtime=context.runtime))
            record = await read(context.meta, key, CHAIN)
        if record is None or record.value.doomed is not None:
            raise StreamNotFoundError(f"stream {name} was deleted while it was being opened")
        wanted = replace(record.value, epoch=record.value.epoch + 1, leader=max(leader, record.value.leader))
        held = cls(context, name, record)
        await held.change(lambda _: wanted)
        return held

    @classmethod
    async def take_as_left(
        cls, context: StreamContext, name: str, left: Left, *, leader: int, opened: LedgerId | None, now_ms: int
    ) -> "HeldChain":
        """`take` after a handover, in one step: close the former holder's ledger and add `opened` as the next one.
        StreamFencedError if the chain changed after the handover."""
        held = cls(context, name, VersionedValue(keys.stream(name), left.chain, left.version))
        wanted = left.taken(leader, opened, now_ms)
        await held.change(lambda _: wanted)
        return held

    @property
    def value(self) -> Chain:
        return self._record.value

    @property
    def version(self) -> int:
        """Version of the chain record in the metadata."""
        return self._record.version

    @property
    def key(self) -> str:
        return self._record.key

    async def may_name(self, ledger_id: LedgerId) -> bool:
        return await may_name(self._context, self._name, ledger_id)

    async def confirm(self) -> None:
        """Raise StreamFencedError if the stream has another holder now."""
        record = await read(self._context.meta, self.key, CHAIN)
        if record is None or record.value != self.value:
            raise StreamFencedError(f"stream {self._name} was taken over by another broker")

    async def change(self, transform: Callable[[Chain], Chain]) -> None:
        """Replace the chain by `transform` of it, if the store still has this holder's chain. A change always
        completes, even if its caller is cancelled: a holder that missed its own change would fence itself."""
        changing = asyncio.get_running_loop().create_task(self._change(transform))
        changing.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(changing)

    async def _change(self, transform: Callable[[Chain], Chain]) -> None:
        async with self._changing:
            self._record = await self._changed(transform)

    async def delete(self, also: tuple[LedgerId, ...] = ()) -> None:
        """Delete the stream with its ledgers and the ledgers in `also`. StreamFencedError, and no deletion, if the
        stream has another holder. A deletion is final once the record has it."""
        if self.value.doomed is None:
            await self.change(lambda chain: chain.deleted(also))
        await _sweep(self._context, self._record)

    async def _changed(self, transform: Callable[[Chain], Chain]) -> VersionedValue[Chain]:
        mine = self._record.value
        wanted = transform(mine)
        check(wanted.epoch >= mine.epoch, "the epoch of a stream never decreases")
        check(wanted.leader >= mine.leader, "the leader epoch of a stream never decreases")
        check(wanted.start_offset >= mine.start_offset, "the start offset of a stream never decreases")
        check(wanted.end_offset >= mine.end_offset, "the end offset of a stream never decreases")

        def unless_taken(now: Chain) -> Chain:
            if now == wanted:
                return now
            if now != mine:
                raise StreamFencedError(f"stream {self._name} was taken over by another broker")
            return wanted

        try:
            return await update(
                self._context.meta,
                self._record.key,
                CHAIN,
                unless_taken,
                runtime=self._context.runtime,
                known=self._record,
            )
        except MetaKeyMissingError as missing:
            raise StreamFencedError(f"stream {self._name} was deleted by another broker") from missing


async def may_name(context: StreamContext, name: str, ledger_id: LedgerId) -> bool:
    """Whether the stream's chain in the store may have this ledger, under any holder: a change whose response was
    lost may have been made, and the next holder then owns the ledger. For fenced holders, which change nothing."""
    try:
        record = await read(context.meta, keys.stream(name), CHAIN)
    except MetaError:
        return True
    if record is None:
        return False
    return record.value.span_of(ledger_id) is not None or record.value.state_ledger == ledger_id


async def _sweep(context: StreamContext, deleted: VersionedValue[Chain]) -> None:
    """Delete the ledgers of a deleted stream, then its record. Idempotent and safe to run concurrently."""
    for ledger_id in deleted.value.doomed or ():
        await context.ledgers.delete(ledger_id)
    for place in deleted.value.stores:
        await context.segments.store(place).clear()
    with suppress(MetaConflictError):  # another broker was faster
        await context.meta.delete(deleted.key, expect=deleted.version)


def take_ahead(context: StreamContext, name: str, left: Left, leader: int) -> None:
    """Take the stream over after a handover, in this leader epoch, before anything opens it."""
    context.coming.take(name, _take_as_left(context, name, left, leader))


async def _take_as_left(context: StreamContext, name: str, left: Left, leader: int) -> Taken:
    """Take the stream over with the ledger created ahead for it, if any. StreamFencedError if the chain changed
    after the handover."""
    spans, terminated = left.chain.spans, left.chain.terminated_at is not None
    writer = None if terminated else await context.coming.ledger(name, spans[-1].ledger_id if spans else None)
    opened = None if writer is None else writer.ledger_id
    now_ms = max(context.runtime.clock.wall_ms(), left.last_ms)
    try:
        chain = await HeldChain.take_as_left(context, name, left, leader=leader, opened=opened, now_ms=now_ms)
    except WeirError:
        if writer is not None:
            await writer.abandon()
            if not await may_name(context, name, writer.ledger_id):
                await context.ledgers.delete(writer.ledger_id)
        raise
    return Taken(chain, left, writer)
