"""Takes held messages whose moment has come, reads them back and appends them to the stream, in their order."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from weir.model.batch import Batch
from weir.model.check import check
from weir.model.errors import InvariantError, StreamTerminatedError, WeirError
from weir.stream.holding.appends import Release, Releases
from weir.stream.holding.context import HoldingContext
from weir.stream.holding.ledger import HeldLedger
from weir.stream.holding.loader import Loader
from weir.stream.holding.reads import HeldReads
from weir.stream.holding.windows import DuePosition, due_of, entry_of, moment
from weir.stream.holding.writer import HoldingWriter
from weir.wire.held import decode_held

log = logging.getLogger(__name__)


class Releaser:
    """One per holding area; `run` it in the background."""

    def __init__(
        self,
        context: HoldingContext,
        shelf: HoldingWriter,
        loader: Loader,
        reads: HeldReads,
        released: Callable[[HeldLedger, int], None],
    ) -> None:
        """`released` is told of each entry that is in the stream, at the moment when that is known."""
        self._stream = context.stream
        self._clock = context.clock
        self._settings = context.settings
        self._shelf = shelf
        self._loader = loader
        self._reads = reads
        self._released = released
        self._releases = Releases(context, finished=self._finished, returned=self._returned)
        #: Places to look at again, by monotonic time: what the stream did not take. As few as are in flight.
        self._later: list[tuple[float, DuePosition]] = []
        self._woken = asyncio.Event()
        self._ended = False

    @property
    def covered(self) -> int:
        """Every release before this offset of the stream is in the bitmaps."""
        return self._releases.covered

    @property
    def terminated(self) -> bool:
        """Whether the stream takes no more messages, so that nothing can be released any more."""
        return self._ended or self._stream.chain.terminated_at is not None

    def wake(self) -> None:
        """Something is due sooner than was known."""
        self._woken.set()

    async def landed(self) -> None:
        """Wait until nothing is under way but what is in doubt."""
        await self._releases.landed()

    async def cover(self, offset: int) -> None:
        """Wait until every release before the offset is in the bitmaps."""
        await self._releases.cover(offset)

    def give_up(self, reason: WeirError) -> None:
        """Nobody will find out any more what became of what is under way: tell those who wait."""
        self._releases.give_up(reason)

    async def run(self) -> None:
        """Release what is due, for ever."""
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
            log.warning("stream %s is terminated; what is held for it stays held", self._stream.name)

    # --- taking -----------------------------------------------------------------------------------------

    def _take(self) -> list[tuple[HeldLedger, DuePosition]]:
        """The next group that is due, in order."""
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
        """Sleep until the next moment, until something changes, and never longer than a tick: the wall clock may
        jump."""
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
        """Read the group back and append it."""
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
        """Release one entry that is free, whatever its moment; answers its offset in the stream."""
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
        """The batches, as many as can be read now."""
        try:
            payloads = await self._reads.fetch(ledger, entries)
            return {entry: decode_held(payload)[1] for entry, payload in payloads.items()}
        except InvariantError:
            raise
        except WeirError as failed:
            log.warning("held messages in ledger %s cannot be read now: %s", ledger.ledger_id, failed)
            return {}

    def _finished(self, release: Release) -> None:
        release.ledger.finish(release.entry, release.batch.count)
        self._shelf.touch(release.ledger)
        self._released(release.ledger, release.entry)

    def _returned(self, release: Release, failure: BaseException) -> None:
        """It is not in the stream: try again soon, unless the stream takes nothing more."""
        if isinstance(failure, StreamTerminatedError):
            self._ended = True
            self._woken.set()
        self._put_back(release.ledger, release.place)

    def _put_back(self, ledger: HeldLedger, place: DuePosition) -> None:
        ledger.taken.discard(entry_of(place))
        heappush(self._later, (self._clock.monotonic() + self._settings.release_pause_s, place))
