"""Receipts of one producer in the order of its sends, whichever way each batch takes.

Clients match receipts with what they sent first: one that overtakes another looks like a fault of the connection,
and everything is sent again. Appends to the log end in order by themselves; what is held, refused or known already
ends when it ends, and its receipt waits here for those before it.
"""

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from weir.broker.api import Receipt

if TYPE_CHECKING:
    Answer = asyncio.Future[Receipt]


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
