"""A subscription's filter: acknowledges the messages that do not match, and counts them as filtered.

Filter evaluation takes time, and a filter may reject every message of a topic: a subscription evaluates a bounded
number of messages per turn of the event loop, and a large batch in a task of its own.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence

from weir.broker.filters.message_filter import CompiledFilter, Masks
from weir.broker.log.log_feed import Feed, Source
from weir.broker.settings import BrokerSettings
from weir.model.batch import Addressed, Batch, BatchFlags, Run, runs_of
from weir.model.errors import ReadStuckError
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.stream.cursor import Cursor

#: Messages that one subscription filters per turn of the loop; a batch counts as `_A_BATCH` messages at least.
_A_TURN = 512
_A_BATCH = 4
#: A batch of more messages is filtered in a task that yields to the loop.
_LARGE = 1024
#: The flags of most batches: an identity check is cheaper than flag arithmetic.
_PLAIN = BatchFlags.NONE


class Screen:
    """`visible`: the visible messages of a batch before the filter, as bits. `note`: callback invoked with the
    filtered messages, which are acknowledged then. `name`: the subscription's name; a batch addressed to this
    subscription bypasses the filter, and a batch addressed to another one is invisible."""

    def __init__(
        self,
        masks: Masks,
        cursor: Cursor,
        visible: Callable[[Batch], int | None],
        note: Callable[[Batch, Sequence[Run]], None],
        name: str = "",
    ) -> None:
        self._name = name
        self.filter: CompiledFilter | None = None
        #: Filters of single consumers; a message that does not match one of them stays for other consumers.
        self.others: Collection[CompiledFilter] = ()
        #: How many messages the filter rejected.
        self.filtered = 0
        self._masks = masks
        self._cursor = cursor
        self._visible = visible
        self._note = note
        self._spent = 0

    def over(self, visible: Callable[[Batch], int | None]) -> "Screen":
        """Switch to the visibility rule of another source; return self."""
        self._visible = visible
        return self

    def visible(self, batch: Batch) -> int | None:
        """Messages of the batch that a consumer may see; None for all of them."""
        shown = self._visible(batch)
        if batch.flags is not _PLAIN and batch.flags & BatchFlags.UNSEEN:
            return 0 if self._is_anothers(batch) else shown
        if self.filter is None or shown == 0:
            return shown
        taken = self._masks.mask(self.filter, batch)
        return taken if shown is None else shown if taken is None else shown & taken

    def mask(self, wanted: CompiledFilter, batch: Batch) -> int | None:
        """Messages of the batch that match the filter, as bits; None for all of them."""
        return self._masks.mask(wanted, batch)

    def settle(self, batch: Batch) -> None:
        """Acknowledge messages that no consumer can see; otherwise they would block the cursor forever."""
        cursor, base = self._cursor, batch.base_offset
        shown = self._visible(batch)
        private = batch.flags is not _PLAIN and bool(batch.flags & BatchFlags.PRIVATE)
        nothing = batch.flags is not _PLAIN and batch.flags & BatchFlags.NOTHING
        if shown == 0 or nothing or (private and self._is_anothers(batch)):
            cursor.ack(base, batch.end_offset)
            return
        whole = (1 << batch.count) - 1
        if shown is not None:
            for first, end in runs_of(whole & ~shown, base):
                cursor.ack(first, end)
        taken = None if self.filter is None or private else self._masks.mask(self.filter, batch)
        if taken is None:
            return
        left_out = cursor.unacked_mask(base, batch.count) & ~taken
        if left_out:
            runs = runs_of(left_out, base)
            for first, end in runs:
                cursor.ack(first, end)
            self.filtered += left_out.bit_count()
            self._note(batch, runs)

    def _is_anothers(self, batch: Batch) -> bool:
        """Whether the batch is addressed to another subscription."""
        origin = batch.origin
        return isinstance(origin, Addressed) and origin.subscription != self._name

    def ready(
        self, batches: list[Batch], tasks: TaskScope, clock: Clock, wake: Callable[[], None]
    ) -> list[Batch] | None:
        """Return the leading batches that are filtered already; None if the first is not: `wake` is called when it
        is."""
        if self.filter is None and not self.others:
            return batches
        filters = self.others if self.filter is None else (self.filter, *self.others)
        for place, batch in enumerate(batches):
            if not self.others and batch.flags is not _PLAIN and batch.flags & BatchFlags.UNSEEN:
                continue
            unknown = [one for one in filters if not self._masks.known(one, batch)]
            if not unknown:
                continue
            if batch.count > _LARGE:
                if place == 0:
                    tasks.spawn(self._evaluate(unknown, batch, clock, wake), "filter")
                return batches[:place] or None
            if self._spent >= _A_TURN:
                if place == 0:
                    asyncio.get_running_loop().call_soon(wake)
                return batches[:place] or None
            self._spend(max(batch.count, _A_BATCH) * len(unknown))
            for one in unknown:
                self._masks.mask(one, batch)
        return batches

    def _spend(self, messages: int) -> None:
        if not self._spent:
            asyncio.get_running_loop().call_soon(self._new_turn)
        self._spent += messages

    def _new_turn(self) -> None:
        self._spent = 0

    async def _evaluate(
        self, filters: Sequence[CompiledFilter], batch: Batch, clock: Clock, wake: Callable[[], None]
    ) -> None:
        for one in filters:
            for _ in self._masks.looking(one, batch):
                await clock.sleep(0)
        wake()


class ScreenedFeed(Feed):
    """A feed that filters batches before it returns them."""

    def __init__(
        self,
        source: Source,
        clock: Clock,
        settings: BrokerSettings,
        tasks: TaskScope,
        wake: Callable[[], None],
        *,
        screen: Screen,
        stuck: Callable[[ReadStuckError], None] = lambda failure: None,
    ) -> None:
        super().__init__(source, clock, settings, tasks, wake, stuck=stuck)
        self._screen = screen
        self._looking = False

    def get(self, offset: int, credit: int) -> list[Batch] | None:
        if self._looking:
            return None
        found = super().get(offset, credit)
        if not found:
            return found
        ready = self._screen.ready(found, self._tasks, self._clock, self._on_filtered)
        self._looking = ready is None
        return ready

    def _on_filtered(self) -> None:
        self._looking = False
        self._wake()
