"""Order of a producer's batches across the log and the holding area, and order of its receipts.

Deduplication has one number per producer: the highest stored sequence. If a later batch were stored while an
earlier one fails on its way to the other store, a retry of the earlier one would count as a duplicate and be lost.
So a delayed batch waits for the producer's earlier batches, and blocks its later ones. Delayed batches are written
one by one, because they may go to different ledgers, of which one may fail alone.

Clients match receipts with their oldest pending send: a receipt out of order looks like a connection fault, and
the client sends everything again. Appends to the log end in order; the receipt of a delayed, refused or duplicate
batch may be ready early, and waits here for the receipts before it.
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
    """A queued batch. `held`: whether it is delayed. `give_up`: called if an earlier batch fails."""

    held: bool
    send: "Callable[[], asyncio.Future[Any]]"
    give_up: Callable[[BaseException], None]


class _Lane:
    __slots__ = ("queue", "under_way")

    def __init__(self) -> None:
        self.queue: deque[Waiting] = deque()
        self.under_way = 0


#: A producer's name, or the id of an idempotent producer: no name is equal to a number.
LaneKey = str | int


class PublishOrder:
    """The lanes (queues of unsent batches) of one topic. A producer has a lane only while it has a delayed
    batch."""

    def __init__(self) -> None:
        self._lanes: dict[LaneKey, _Lane] = {}

    def has(self, producer: LaneKey) -> bool:
        """Whether this producer's batches must queue."""
        return producer in self._lanes

    def enter(self, producer: LaneKey, waiting: Waiting, before: "Sequence[asyncio.Future[Any]]") -> None:
        """Queue the batch, and send it in its turn. `before`: pending batches of a producer without a lane."""
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
        """If nothing is pending, send one delayed batch, or all batches up to the next delayed one."""
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
    """The receipts of one producer. A producer that only appends costs a reference."""

    __slots__ = ("_last", "_waiting")

    def __init__(self) -> None:
        #: The last appended receipt, while only appends are pending.
        self._last: Answer | None = None
        #: Pending receipts if some of them are not appends: the internal receipt, and the one that the sender
        #: awaits.
        self._waiting: deque[tuple[Answer, Answer]] = deque()

    def appended(self, receipt: "Answer") -> "Answer":
        """Return the receipt for the sender of a batch that is being appended to the log."""
        if self._waiting:
            return self.behind(receipt)
        self._last = receipt
        return receipt

    def behind(self, receipt: "Answer") -> "Answer":
        """Return the receipt for the sender of a batch that may end at any time: it completes after all earlier
        ones."""
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
                _copy_result(receipt, told)


def _copy_result(receipt: "Answer", told: "Answer") -> None:
    if receipt.cancelled():
        told.cancel()
        return
    failure = receipt.exception()
    if told.done():  # the sender has cancelled it
        return
    if failure is not None:
        told.set_exception(failure)
    else:
        told.set_result(receipt.result())
