"""Releases under way: held batches that are being appended to their stream.

An append that fails may have stored its batch all the same. Which ones did is read from the stream itself, since
every released batch names its held id; only what is not there is tried again. So nothing is released twice.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from weir.model.batch import Batch, BatchFlags, HeldId, Prepared
from weir.model.errors import InvariantError, WeirError
from weir.runtime.waiters import Waiters
from weir.stream.holding.context import HoldingContext
from weir.stream.holding.ledger import HeldLedger
from weir.stream.holding.windows import DuePosition
from weir.stream.log import Stream

log = logging.getLogger(__name__)

_READ_BYTES = 1024 * 1024


async def released_since(stream: Stream, offset: int) -> AsyncGenerator[tuple[HeldId, Batch], None]:
    """Every released batch of the stream from the offset to its end as it is now."""
    offset, end = max(offset, stream.start_offset), stream.end_offset
    while offset < end and (batches := await stream.read(offset, _READ_BYTES)):
        for batch in batches:
            if batch.held is not None and batch.flags & BatchFlags.RELEASED:
                yield batch.held, batch
        offset = batches[-1].end_offset


@dataclass(slots=True, eq=False)
class Release:
    """One held batch on its way into the stream."""

    ledger: HeldLedger
    entry: int
    place: DuePosition
    batch: Batch
    #: The stream's end when it was appended: its offset lies there or beyond.
    floor: int = 0
    #: For whoever waits for this one.
    outcome: "asyncio.Future[int] | None" = None

    @property
    def held(self) -> HeldId:
        return HeldId(self.ledger.ledger_id, self.entry)


class Releases:
    """Appends, and finds out what became of them. `finished` is told of each batch that is in the stream,
    `returned` of each that is not and why; both at most once per append."""

    def __init__(
        self,
        context: HoldingContext,
        *,
        finished: Callable[[Release], None],
        returned: Callable[[Release, BaseException], None],
    ) -> None:
        self._stream = context.stream
        self._clock = context.clock
        self._tasks = context.tasks
        self._limit = context.settings.in_flight
        self._pause_s = context.settings.release_pause_s
        self._finished = finished
        self._returned = returned
        # In the order of appending, so the first has the lowest floor.
        self._flying: dict[Release, None] = {}
        #: Of those, the ones whose append failed, and how.
        self._doubtful: dict[Release, BaseException] = {}
        self._resolver: asyncio.Task[None] | None = None
        self._landed = Waiters()

    @property
    def covered(self) -> int:
        """Every released batch before this offset of the stream has been told to `finished`."""
        for release in self._flying:
            return release.floor
        return self._stream.end_offset

    def append(self, release: Release) -> None:
        """Append the batch as a released one. It keeps its origin, so that deduplication finds it in the stream
        after its holding ledger is gone; but a half message's has done its work."""
        release.floor = self._stream.end_offset
        self._flying[release] = None
        held = release.batch
        batch = Batch(
            0,
            held.count,
            held.format,
            0,
            held.payload,
            held.flags | BatchFlags.RELEASED,
            None if isinstance(held.origin, Prepared) else held.origin,
            release.held,
            held.stamp,
        )
        self._stream.append(batch).add_done_callback(lambda done: self._answered(release, done))

    async def wait_capacity(self) -> None:
        """Wait until one more may be appended."""
        while len(self._flying) >= self._limit:
            await self._landed.wait()
        await self._stream.wait_capacity()

    async def landed(self) -> None:
        """Wait until nothing is under way but what is in doubt."""
        while len(self._flying) > len(self._doubtful):
            await self._landed.wait()

    async def cover(self, offset: int) -> None:
        """Wait until every release before the offset is known."""
        while self.covered < offset:
            if self._stream.failure is not None:
                raise self._stream.failure
            await self._landed.wait()

    def give_up(self, reason: WeirError) -> None:
        """Tell whoever waits for a release that its outcome will not be known here."""
        for release in self._flying:
            if release.outcome is not None and not release.outcome.done():
                release.outcome.set_exception(reason)
        self._landed.wake()

    def _answered(self, release: Release, done: "asyncio.Future[int]") -> None:
        failure = done.exception()
        if failure is None:
            self._land(release, done.result())
            return
        self._doubtful[release] = failure
        self._landed.wake()
        if self._resolver is None:
            self._resolver = self._tasks.spawn(self._resolve(), "resolve")

    def _land(self, release: Release, offset: int) -> None:
        del self._flying[release]
        self._finished(release)
        if release.outcome is not None and not release.outcome.done():
            release.outcome.set_result(offset)
        self._landed.wake()

    async def _resolve(self) -> None:
        """Find out which of the failed appends are in the stream."""
        try:
            while self._doubtful:
                failed = dict(self._doubtful)  # others may fail while this is being found out
                try:
                    await self._stream.settled()
                    there = await self._find(min(release.floor for release in failed))
                except InvariantError:
                    raise
                except WeirError as unknown:
                    if self._stream.failure is not None:
                        return  # the next holder finds out
                    log.warning("%s: releases stay in doubt for now: %s", self._stream.name, unknown)
                    await self._clock.sleep(self._pause_s)
                else:
                    self._decide(failed, there)
        finally:
            self._resolver = None
            self._landed.wake()

    def _decide(self, failed: dict[Release, BaseException], there: dict[HeldId, int]) -> None:
        for release, failure in failed.items():
            del self._doubtful[release]
            offset = there.get(release.held)
            if offset is not None:
                self._land(release, offset)
                continue
            del self._flying[release]
            self._returned(release, failure)
            if release.outcome is not None and not release.outcome.done():
                release.outcome.set_exception(failure)
        self._landed.wake()

    async def _find(self, offset: int) -> dict[HeldId, int]:
        return {held: batch.base_offset async for held, batch in released_since(self._stream, offset)}
