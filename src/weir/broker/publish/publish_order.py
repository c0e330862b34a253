"""Two ways to store, one order: a producer's batches go to the log or to the holding area, never to both at once.

Deduplication knows one number per producer, the highest that is stored. If a later batch were stored while an
earlier one, on its own way, fails, the earlier one would pass for a duplicate when it is sent again, and be lost.
So what is to be held waits for what was sent before it, and holds up what is sent after it. Held ones go one by
one: they may lie in different ledgers, of which one fails and another does not.

Receipts of one producer in the order of its sends, whichever way each batch takes.

Clients match receipts with what they sent first: one that overtakes another looks like a fault of the connection,
and everything is sent again. Appends to the log end in order by themselves; what is held, refused or known already
ends when it ends, and its receipt waits here for those before it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weir.broker.api.producers import Receipt
from weir.model.check import check

if TYPE_CHECKING:
    Answer = asyncio.Future[Receipt]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A batch whose turn has not come: how it is sent on, and what to do if what stands before it fails."""

    held: bool
    send: "Callable[[], asyncio.Future[Any]]"
    give_up: Callable[[BaseException], None]


class _Lane:
    __slots__ = ("queue", "under_way")

    def __init__(self) -> None:
        self.queue: deque[Waiting] = deque()
        self.under_way = 0


#: A producer by its name, or an idempotent one by its id: no name is equal to a number.
LaneKey = str | int


class Lanes:
    """Of one topic. A producer has a lane only while it has something to hold."""

    def __init__(self) -> None:
        self._lanes: dict[LaneKey, _Lane] = {}

    def has(self, producer: LaneKey) -> bool:
        """Whether this producer's batches have to wait for their turn."""
        return producer in self._lanes

    def enter(self, producer: LaneKey, waiting: Waiting, before: "Sequence[asyncio.Future[Any]]") -> None:
        """Send the batch on when its turn comes. `before`: what is under way if the producer has no lane yet."""
        lane = self._lanes.get(producer)
        if lane is None:
            lane = self._lanes[producer] = _Lane()
            for other in before:
                self._follow(producer, lane, other)
        lane.queue.append(waiting)
        self._go_on(producer, lane)

    def _follow(self, producer: LaneKey, lane: _Lane, sent: "asyncio.Future[Any]") -> None:
        lane.under_way += 1
        sent.add_done_callback(lambda done: self._ended(producer, lane, done))

    def _ended(self, producer: LaneKey, lane: _Lane, done: "asyncio.Future[Any]") -> None:
        lane.under_way -= 1
        check(lane.under_way >= 0, "a batch in a lane ends once")
        failure = asyncio.CancelledError() if done.cancelled() else done.exception()
        if failure is not None:
            stranded, lane.queue = lane.queue, deque()
            for waiting in stranded:
                waiting.give_up(failure)
        self._go_on(producer, lane)

    def _go_on(self, producer: LaneKey, lane: _Lane) -> None:
        """Once nothing is under way: one batch to hold, or all up to the next of those."""
        if lane.under_way:
            return
        run = [lane.queue.popleft()] if lane.queue else []
        while run and not run[0].held and lane.queue and not lane.queue[0].held:
            run.append(lane.queue.popleft())
        for waiting in run:
            self._follow(producer, lane, waiting.send())
        if not run and self._lanes.get(producer) is lane:
            del self._lanes[producer]


class ReceiptOrder:
    """Of one producer. As long as it does nothing but append, this costs nothing but a reference."""

    __slots__ = ("_last", "_waiting")

    def __init__(self) -> None:
        #: The last one to be appended, while nothing else is under way.
        self._last: Answer | None = None
        #: What is under way, if not all of it is being appended: how it ends, and what its sender waits for.
        self._waiting: deque[tuple[Answer, Answer]] = deque()

    def appended(self, receipt: "Answer") -> "Answer":
        """What to give the sender of a batch that is on its way into the log."""
        if self._waiting:
            return self.behind(receipt)
        self._last = receipt
        return receipt

    def behind(self, receipt: "Answer") -> "Answer":
        """What to give the sender of a batch that may end at any time: it is done once all before it are."""
        if not self._waiting:
            last, self._last = self._last, None
            if last is not None and not last.done():
                self._await(last, last)
            elif receipt.done():
                return receipt
            else:
                self._await(receipt, receipt)
                return receipt
        told: Answer = asyncio.get_running_loop().create_future()
        self._await(receipt, told)
        return told

    def _await(self, receipt: "Answer", told: "Answer") -> None:
        self._waiting.append((receipt, told))
        receipt.add_done_callback(self._ended)

    def _ended(self, _: "Answer") -> None:
        while self._waiting and self._waiting[0][0].done():
            receipt, told = self._waiting.popleft()
            if told is not receipt:
                _tell(receipt, told)


def _tell(receipt: "Answer", told: "Answer") -> None:
    if receipt.cancelled():
        told.cancel()
        return
    failure = receipt.exception()
    if told.done():  # whoever sent it no longer waits
        return
    if failure is not None:
        told.set_exception(failure)
    else:
        told.set_result(receipt.result())
