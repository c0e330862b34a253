"""Releases delayed messages: reads due messages from their ledgers and appends them to the stream in due order.

A failed append may still have stored its batch. Each released batch contains its held id, so the releaser reads
the stream to find which batches it has, and retries only the others. So no message is released twice.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from weir.model.batch import Batch, BatchFlags, HeldId, Prepared
from weir.model.check import check
from weir.model.errors import InvariantError, StreamTerminatedError, WeirError
from weir.runtime.waiters import Waiters
from weir.stream.holding.ledger import DuePosition, HeldLedger, HoldingContext, due_of, entry_of, moment
from weir.stream.holding.loader import HeldReads, Loader
from weir.stream.holding.writer import HoldingWriter
from weir.stream.log import Stream
from weir.wire.delayed_batches import decode_held

log = logging.getLogger(__name__)

_READ_BYTES = 1024 * 1024


async def released_since(stream: Stream, offset: int) -> AsyncGenerator[tuple[HeldId, Batch], None]:
    """All released batches of the stream from the offset to its current end."""
    offset, end = max(offset, stream.start_offset), stream.end_offset
    while offset < end and (batches := await stream.read(offset, _READ_BYTES)):
        for batch in batches:
            if batch.held is not None and batch.flags & BatchFlags.RELEASED:
                yield batch.held, batch
        offset = batches[-1].end_offset


@dataclass(slots=True, eq=False)
class Release:
    """A delayed batch with a pending append to the stream."""

    ledger: HeldLedger
    entry: int
    place: DuePosition
    batch: Batch
    #: End of the stream at the time of the append: the lowest possible offset of the batch.
    floor: int = 0
    #: Future of a caller that waits for the offset of this release.
    outcome: "asyncio.Future[int] | None" = None

    @property
    def held(self) -> HeldId:
        return HeldId(self.ledger.ledger_id, self.entry)


class Releases:
    """Appends delayed batches and resolves failed appends. It calls `finished` for each batch that the stream has,
    and `returned` with the error for each other one; one of them at most once per append."""

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
        # Pending releases in order of append, so the first has the lowest floor.
        self._flying: dict[Release, None] = {}
        #: Pending releases with a failed append, and the error.
        self._doubtful: dict[Release, BaseException] = {}
        self._resolver: asyncio.Task[None] | None = None
        self._landed = Waiters()

    @property
    def covered(self) -> int:
        """The offset before which `finished` was called for every released batch of the stream."""
        for release in self._flying:
            return release.floor
        return self._stream.end_offset

    def append(self, release: Release) -> None:
        """Append the batch as a released one. It keeps its origin, so that deduplication finds it in the stream
        after the deletion of its ledger; the origin of a prepared message is no longer needed."""
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
        """Wait until one more release may be appended."""
        while len(self._flying) >= self._limit:
            await self._landed.wait()
        await self._stream.wait_capacity()

    async def landed(self) -> None:
        """Wait until all pending releases are decided or in doubt."""
        while len(self._flying) > len(self._doubtful):
            await self._landed.wait()

    async def cover(self, offset: int) -> None:
        """Wait until every release before the offset is decided."""
        while self.covered < offset:
            if self._stream.failure is not None:
                raise self._stream.failure
            await self._landed.wait()

    def give_up(self, reason: WeirError) -> None:
        """Fail the callers that wait for a release: this holder will not learn its outcome."""
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
        """Read from the stream which of the failed appends are stored."""
        try:
            while self._doubtful:
                failed = dict(self._doubtful)  # further appends may fail during the reads
                try:
                    await self._stream.settled()
                    there = await self._find(min(release.floor for release in failed))
                except InvariantError:
                    raise
                except WeirError as unknown:
                    if self._stream.failure is not None:
                        return  # the next holder resolves them
                    log.warning("stream %s: failed releases stay in doubt: %s", self._stream.name, unknown)
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


class Releaser:
    """Releases due messages of one holding area; `run` it in the background."""

    def __init__(
        self,
        context: HoldingContext,
        shelf: HoldingWriter,
        loader: Loader,
        reads: HeldReads,
        released: Callable[[HeldLedger, int], None],
    ) -> None:
        """`released`: called with each entry as soon as the stream is known to have it."""
        self._stream = context.stream
        self._clock = context.clock
        self._settings = context.settings
        self._shelf = shelf
        self._loader = loader
        self._reads = reads
        self._released = released
        self._releases = Releases(context, finished=self._finished, returned=self._returned)
        #: Heap of retries: monotonic time and position of releases that the stream refused; at most `in_flight`.
        self._later: list[tuple[float, DuePosition]] = []
        self._woken = asyncio.Event()
        self._ended = False

    @property
    def covered(self) -> int:
        """The offset of the stream before which all releases are in the bitmaps."""
        return self._releases.covered

    @property
    def terminated(self) -> bool:
        """Whether the stream is terminated, so that no message can be released any more."""
        return self._ended or self._stream.chain.terminated_at is not None

    def wake(self) -> None:
        """Check again for due messages: one may be due earlier than the current wait ends."""
        self._woken.set()

    async def landed(self) -> None:
        """Wait until all pending releases are decided or in doubt."""
        await self._releases.landed()

    async def cover(self, offset: int) -> None:
        """Wait until every release before the offset is in the bitmaps."""
        await self._releases.cover(offset)

    def give_up(self, reason: WeirError) -> None:
        """Fail the callers that wait for a pending release: this holder will not learn its outcome."""
        self._releases.give_up(reason)

    async def run(self) -> None:
        """Release due messages until the stream is terminated."""
        while not self.terminated:
            await self._shelf.filled.wait()
            taken = self._take()
            if self._loader.is_due:
                self._loader.wanted.set()
            if taken:
                await self._release(taken)
            else:
                await self._nap()
        if len(self._shelf):
            log.warning("stream %s is terminated; its delayed messages are not delivered", self._stream.name)

    # --- selection --------------------------------------------------------------------------------------

    def _take(self) -> list[tuple[HeldLedger, DuePosition]]:
        """Take the next group of due messages, in order."""
        self._look_again()
        loader, settings = self._loader, self._settings
        end = moment(self._clock.wall_ms() + 1)
        taken: list[tuple[HeldLedger, DuePosition]] = []
        size = 0
        while (first := loader.first()) is not None and first[1] < end:
            ledger, place = first
            loader.index.pop()
            check(ledger.is_free(entry_of(place)), "a held message is released once")
            ledger.taken.add(entry_of(place))
            taken.append(first)
            size += ledger.mean_bytes
            if len(taken) >= settings.group_entries or size >= settings.group_bytes:
                break
        return taken

    def _look_again(self) -> None:
        now = self._clock.monotonic()
        while self._later and self._later[0][0] <= now:
            self._loader.index.push(heappop(self._later)[1])

    async def _nap(self) -> None:
        """Sleep until the next due time or a `wake`, at most for a tick, since the wall clock may jump."""
        seconds = self._settings.tick_s
        first = self._loader.first()
        if first is not None:
            seconds = min(seconds, (due_of(first[1]) - self._clock.wall_ms()) / 1000)
        if self._later:
            seconds = min(seconds, self._later[0][0] - self._clock.monotonic())
        self._woken.clear()
        timer = self._clock.call_later(max(seconds, 0.001), self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()

    # --- releasing --------------------------------------------------------------------------------------

    async def _release(self, taken: list[tuple[HeldLedger, DuePosition]]) -> None:
        """Read the messages of the group and append them."""
        wanted: dict[int, list[int]] = {}
        for ledger, place in taken:
            wanted.setdefault(ledger.serial, []).append(entry_of(place))
        ledgers = {ledger.serial: ledger for ledger, _ in taken}
        found = await asyncio.gather(*(self._read(ledgers[serial], wanted[serial]) for serial in wanted))
        batches = dict(zip(wanted, found, strict=True))
        for ledger, place in taken:
            batch = batches[ledger.serial].get(entry_of(place))
            if batch is None:
                ledger.taken.discard(entry_of(place))
                if entry_of(place) not in ledger.done:
                    self._loader.lost(ledger, place)
                continue
            await self._releases.wait_capacity()
            self._releases.append(Release(ledger, entry_of(place), place, batch))

    async def release_now(self, ledger: HeldLedger, place: DuePosition, batch: Batch) -> int:
        """Release one free entry now, before its due time; return its offset in the stream."""
        entry = entry_of(place)
        check(ledger.is_free(entry), "a held message is released once")
        ledger.taken.add(entry)
        try:
            await self._releases.wait_capacity()
        except BaseException:
            self._put_back(ledger, place)
            raise
        outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._releases.append(Release(ledger, entry, place, batch, outcome=outcome))
        return await outcome

    async def _read(self, ledger: HeldLedger, entries: Sequence[int]) -> dict[int, Batch]:
        """The readable batches of these entries."""
        try:
            payloads = await self._reads.fetch(ledger, entries)
            return {entry: decode_held(payload)[1] for entry, payload in payloads.items()}
        except InvariantError:
            raise
        except WeirError as failed:
            log.warning("delayed messages in ledger %s not readable, retrying: %s", ledger.ledger_id, failed)
            return {}

    def _finished(self, release: Release) -> None:
        release.ledger.finish(release.entry, release.batch.count)
        self._shelf.touch(release.ledger)
        self._released(release.ledger, release.entry)

    def _returned(self, release: Release, failure: BaseException) -> None:
        """Retry a release that the stream does not have, unless the stream is terminated."""
        if isinstance(failure, StreamTerminatedError):
            self._ended = True
            self._woken.set()
        self._put_back(release.ledger, release.place)

    def _put_back(self, ledger: HeldLedger, place: DuePosition) -> None:
        ledger.taken.discard(entry_of(place))
        heappush(self._later, (self._clock.monotonic() + self._settings.release_pause_s, place))
