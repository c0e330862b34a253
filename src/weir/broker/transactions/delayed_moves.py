"""Delayed messages of committed transactions: from where they are hidden in the log into the holding area, once.

Each hidden batch becomes one held batch, which names the offset that it comes from; so does the released one. What
a former broker, or an attempt that failed, may have held is looked for in the holding area, once that can no
longer change, and in the log, before anything is held again.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from functools import partial

from weir.broker.ports import Holding
from weir.broker.topic.producer_state_manager import ProducerStateManager
from weir.model.batch import Batch, BatchFlags, HeldId, MovedFrom
from weir.model.errors import (
    InvariantError,
    OffsetTrimmedError,
    StreamClosedError,
    StreamFencedError,
    StreamTerminatedError,
    WeirError,
    WireError,
)
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.stream.log import Stream
from weir.wire.held import decode_held

log = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
#: Batches that are held at a time: few enough for the holding area's window.
_AT_ONCE = 100


class DelayedMoves:
    """Of one topic. `landed` is told of each batch that is held, and where."""

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
        #: Whether something that counts as unmoved may be held all the same.
        self._in_doubt = False
        self._open = False

    def open(self) -> None:
        """Go on where the former broker stopped; the log is known, and the holding area open, if there is one."""
        self._in_doubt = bool(self._delays.unmoved)
        self._open = True
        self.wake()

    def wake(self) -> None:
        """Something is committed; before `open` it waits."""
        if self._open and self._task is None and self._delays.unmoved:
            self._task = self._tasks.spawn(self._run(), "hold what is committed")

    async def before_trim(self, offset: int) -> None:
        """Wait until everything before the offset is moved."""
        while self._producer_state.unmoved_from < offset:
            if self._task is None:
                raise StreamClosedError("what is committed can no longer be held here")
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
                    return  # the next broker goes on
                except StreamTerminatedError:
                    log.warning("%s is terminated: what was to be seen later never is", self._stream.name)
                    self._delays.unmoved.clear()
                except WeirError as failed:
                    log.warning("what is committed in %s is held later: %s", self._stream.name, failed)
                    self._in_doubt = True
                    await self._clock.sleep(self._pause_s)
        finally:
            self._task = None

    async def _move_all(self) -> None:
        holding = self._holding()
        if holding is None:
            raise StreamClosedError("there is no holding area")
        positions = holding.positions()  # nothing of what is held from now on is among these
        if self._in_doubt:
            await self._look_for_moved(holding)
            self._in_doubt = False
        self._delays.known = positions
        offset = self._delays.first
        while offset is not None:
            try:
                batches = await self._stream.read(offset, _READ_BYTES)
            except OffsetTrimmedError:  # somebody has deleted it
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
        # What was released since, and is no longer there, is in the log.
        await self._stream.settled()
        await self._producer_state.catch_up()

    async def _move(self, holding: Holding, batches: list[Batch]) -> None:
        """All of them, in their order; raises if one failed, once it is known of each."""
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
    """When its messages may be seen, and they themselves; None if that cannot be told any more."""
    try:
        due_ms, inner = decode_held(hidden.payload)
    except WireError as bad:
        log.error("a delayed batch at offset %d is damaged, and lost: %s", hidden.base_offset, bad)
        return None
    moved = MovedFrom(hidden.base_offset)
    return due_ms, Batch(-1, inner.count, inner.format, 0, inner.payload, BatchFlags.NONE, moved)
