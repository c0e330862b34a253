"""Delayed messages of one topic: the holding area, its administration, and the moves of committed transactions
into it.

A topic opens its holding area for the first delayed message: most topics never have one. Delayed messages of a
transaction are hidden in the log until the commit; then each hidden batch moves to the holding area exactly once.
The moved batch and the released batch name the offset of the hidden one. A former broker or a failed attempt may
have moved batches already: `DelayedMoves` first searches the holding area, once that can no longer change, and the
log.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Protocol

from weir.broker.context import BrokerContext
from weir.broker.log.producer_state_manager import ProducerStateManager
from weir.broker.ports import Holding
from weir.model.batch import Batch, BatchFlags, HeldId, MovedFrom, Origin
from weir.model.errors import (
    InvariantError,
    NotHeldError,
    OffsetTrimmedError,
    StreamClosedError,
    StreamFencedError,
    StreamTerminatedError,
    WeirError,
    WireError,
)
from weir.model.messages import HeldCount, HeldItem
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.stream.holding.area import HoldingArea
from weir.stream.holding.ledger import LEDGER_KEYS
from weir.stream.log import Stream
from weir.stream.state_log import StateLog
from weir.wire.delayed_batches import decode_held


class LazyHolding:
    """Fills `ports.Holding`. Batches that arrive while the area opens wait for it, in order."""

    def __init__(
        self,
        name: str,
        open_area: Callable[[], Awaitable[Holding]],
        *,
        before_cancel: Callable[[], None] = lambda: None,
    ) -> None:
        self._open_area = open_area
        self._before_cancel = before_cancel
        self._area: Holding | None = None
        self._waiting: list[tuple[Batch, int, asyncio.Future[HeldId]]] = []
        self._opening: asyncio.Task[None] | None = None
        self._closed = False
        self._tasks = TaskScope(f"opening of the holding area of {name}")

    @property
    def area(self) -> Holding | None:
        """The open area; None before."""
        return self._area

    async def open(self) -> None:
        """Open the area now, because a former owner stored batches in it."""
        self._area = await self._open_area()

    def hold(self, batch: Batch, due_ms: int) -> "asyncio.Future[HeldId]":
        if self._area is not None:
            return self._area.hold(batch, due_ms)
        held: asyncio.Future[HeldId] = asyncio.get_running_loop().create_future()
        if self._closed:
            held.set_exception(StreamClosedError("the holding area is closed"))
            return held
        self._waiting.append((batch, due_ms, held))
        if self._opening is None:
            self._opening = self._tasks.spawn(self._open_for_waiting(), "open")
        return held

    async def _open_for_waiting(self) -> None:
        try:
            await self.open()
        except WeirError as failed:
            self._refuse(failed)
        finally:
            self._opening = None
        waiting, self._waiting = self._waiting, []
        if self._area is not None:
            for batch, due_ms, held in waiting:
                _chain(self._area.hold(batch, due_ms), held)

    def _refuse(self, failure: WeirError) -> None:
        waiting, self._waiting = self._waiting, []
        for _, _, held in waiting:
            if not held.done():
                held.set_exception(failure)

    @property
    def has_capacity(self) -> bool:
        return self._area is None or self._area.has_capacity

    async def wait_capacity(self) -> None:
        if self._area is not None:
            await self._area.wait_capacity()

    def positions(self) -> dict[int, int]:
        return {} if self._area is None else self._area.positions()

    async def origins_since(self, positions: Mapping[int, int]) -> AsyncGenerator[Origin, None]:
        if self._area is not None:
            async with aclosing(self._area.origins_since(positions)) as origins:
                async for origin in origins:
                    yield origin

    async def held_since(self, positions: Mapping[int, int]) -> AsyncGenerator[tuple[HeldId, Batch], None]:
        if self._area is not None:
            async with aclosing(self._area.held_since(positions)) as all_held:
                async for held in all_held:
                    yield held

    async def cancel(self, held: HeldId) -> None:
        if self._area is None:
            raise NotHeldError("the topic has no delayed messages")
        self._before_cancel()
        await self._area.cancel(held)

    async def before_trim(self, offset: int) -> None:
        if self._area is not None:
            await self._area.before_trim(offset)

    async def close(self) -> None:
        self._closed = True
        self._refuse(StreamClosedError("the holding area is closed"))
        await self._tasks.close()
        if self._area is not None:
            await self._area.close()


def _chain(source: "asyncio.Future[HeldId]", target: "asyncio.Future[HeldId]") -> None:
    def done(source: "asyncio.Future[HeldId]") -> None:
        failure = source.exception()
        if target.done():
            return
        if failure is not None:
            target.set_exception(failure)
        else:
            target.set_result(source.result())

    source.add_done_callback(done)


async def open_lazily(
    context: BrokerContext, name: str, stream: Stream, state: StateLog, *, before_cancel: Callable[[], None]
) -> LazyHolding | None:
    """A topic's holding area, open if a former owner stored batches in it; None if the broker has no delayed
    messages."""
    open_area = context.open_holding
    if open_area is None:
        return None
    holding = LazyHolding(name, lambda: open_area(context.streams, stream, state), before_cancel=before_cancel)
    if state.keys(LEDGER_KEYS):
        await holding.open()
    return holding


class DecidedElsewhere(Protocol):
    """Half messages: batches in the holding area that wait for a commit or rollback instead of a time."""

    def __contains__(self, held: HeldId) -> bool: ...

    @property
    def counts_held(self) -> HeldCount: ...


class HeldInTopic:
    """Fills `api.HeldMessages`. `half`: messages that it ignores. `before_cancel`: saves the facts about moved
    batches that must survive the cancellation of a batch."""

    def __init__(self, area: HoldingArea, half: DecidedElsewhere, before_cancel: Callable[[], None]) -> None:
        self._area = area
        self._half = half
        self._before_cancel = before_cancel

    async def items(self, after: HeldItem | None = None) -> AsyncGenerator[HeldItem, None]:
        async with aclosing(self._area.items(after)) as items:
            async for item in items:
                if item.id not in self._half:
                    yield item

    async def count(self) -> HeldCount:
        count, half = await self._area.count(), self._half.counts_held
        return HeldCount(max(0, count.batches - half.batches), max(0, count.messages - half.messages))

    async def cancel(self, held: HeldId) -> None:
        self._check(held)
        self._before_cancel()
        await self._area.cancel(held)

    async def release(self, held: HeldId) -> int:
        self._check(held)
        return await self._area.release(held)

    def _check(self, held: HeldId) -> None:
        if held in self._half:
            raise NotHeldError(
                f"{held.ledger}:{held.entry} is a half message, which waits for a decision",
                hint="decide it with: weir prepared commit|rollback",
            )


log = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
#: Batches of a move in progress at the same time: few enough for the holding area's window.
_AT_ONCE = 100


class DelayedMoves:
    """The moves of one topic. `landed`: callback invoked with each moved batch and its id in the holding area."""

    def __init__(
        self,
        stream: Stream,
        producer_state: ProducerStateManager,
        *,
        holding: Callable[[], Holding | None],
        landed: Callable[[Batch, HeldId], None],
        tasks: TaskScope,
        clock: Clock,
        pause_s: float,
    ) -> None:
        self._stream = stream
        self._producer_state = producer_state
        self._delays = producer_state.index.delays
        self._holding = holding
        self._landed = landed
        self._tasks = tasks
        self._clock = clock
        self._pause_s = pause_s
        self._task: asyncio.Task[None] | None = None
        #: Whether the holding area may contain batches that count as unmoved.
        self._in_doubt = False
        self._open = False

    def open(self) -> None:
        """Continue the moves of the former broker. The producer state must be up to date, and the holding area
        open."""
        self._in_doubt = bool(self._delays.unmoved)
        self._open = True
        self.wake()

    def wake(self) -> None:
        """Start moving batches of committed transactions; does nothing before `open`."""
        if self._open and self._task is None and self._delays.unmoved:
            self._task = self._tasks.spawn(self._run(), "move delayed messages")

    async def before_trim(self, offset: int) -> None:
        """Wait until all hidden batches before the offset are moved."""
        while self._producer_state.unmoved_from < offset:
            if self._task is None:
                raise StreamClosedError("this broker can no longer move delayed messages of the topic")
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._delays.unmoved:
                try:
                    await self._move_all()
                except InvariantError:
                    raise
                except (StreamClosedError, StreamFencedError):
                    self._in_doubt = True
                    return  # the next broker continues
                except StreamTerminatedError:
                    log.warning("%s is terminated: its delayed messages will not be delivered", self._stream.name)
                    self._delays.unmoved.clear()
                except WeirError as failed:
                    log.warning(
                        "move of delayed messages of %s failed (repeated after a pause): %s",
                        self._stream.name,
                        failed,
                    )
                    self._in_doubt = True
                    await self._clock.sleep(self._pause_s)
        finally:
            self._task = None

    async def _move_all(self) -> None:
        holding = self._holding()
        if holding is None:
            raise StreamClosedError("the topic has no holding area")
        positions = holding.positions()  # they end before all batches that are moved from now on
        if self._in_doubt:
            await self._look_for_moved(holding)
            self._in_doubt = False
        self._delays.known = positions
        offset = self._delays.first
        while offset is not None:
            try:
                batches = await self._stream.read(offset, _READ_BYTES)
            except OffsetTrimmedError:  # a client deleted the messages
                self._delays.trim(self._stream.start_offset)
                return
            for batch in batches:
                if batch.flags & BatchFlags.LOST:
                    self._delays.lost(batch.base_offset, batch.end_offset)
            await self._move(holding, [batch for batch in batches if batch.base_offset in self._delays.unmoved])
            offset = self._delays.first

    async def _look_for_moved(self, holding: Holding) -> None:
        async with aclosing(holding.held_since(self._delays.known)) as all_held:
            async for _, batch in all_held:
                self._delays.found(batch)
        # Batches that the holding area has released since then are in the log.
        await self._stream.settled()
        await self._producer_state.catch_up()

    async def _move(self, holding: Holding, batches: list[Batch]) -> None:
        """Move the batches in order; after the last one has ended, raise the first failure."""
        moving: list[asyncio.Future[HeldId]] = []
        await holding.wait_capacity()
        for batch in batches:
            found = _opened(batch)
            if found is None:
                self._delays.moved(batch.base_offset)
                continue
            due_ms, opened = found
            if len(moving) >= _AT_ONCE:
                await _all_of(moving)
                moving.clear()
            held = holding.hold(opened, due_ms)
            held.add_done_callback(partial(self._held, opened, batch.base_offset))
            moving.append(held)
        await _all_of(moving)

    def _held(self, batch: Batch, offset: int, done: "asyncio.Future[HeldId]") -> None:
        if not done.cancelled() and done.exception() is None:
            self._delays.moved(offset)
            self._landed(batch, done.result())


async def _all_of(moving: "list[asyncio.Future[HeldId]]") -> None:
    for ended in await asyncio.gather(*moving, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended


def _opened(hidden: Batch) -> tuple[int, Batch] | None:
    """Due time and content of a hidden batch; None if it is damaged."""
    try:
        due_ms, inner = decode_held(hidden.payload)
    except WireError as bad:
        log.error("a delayed batch at offset %d is damaged, and lost: %s", hidden.base_offset, bad)
        return None
    moved = MovedFrom(hidden.base_offset)
    return due_ms, Batch(-1, inner.count, inner.format, 0, inner.payload, BatchFlags.NONE, moved)
