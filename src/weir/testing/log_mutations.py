"""Promises about the log that mistakes below any protocol break: entered by the scenarios that can see it."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from weir.broker.api import Receipt
from weir.broker.publish.publishing import Publisher
from weir.model.batch import Batch
from weir.stream.appender import Appender
from weir.stream.tail import StreamTail


def seen_before_stored() -> Iterator[None]:
    """A batch is in the tail, and so can be read, as soon as it is sent to the bookies."""
    send, push = Appender._send, StreamTail.push

    def show_at_once(self: Appender, writer: Any) -> None:
        sent = list(self._queue)
        send(self, writer)
        for append in sent:
            push(self._tail, append.batch)
        self._end_offset = self._next_offset
        self._changed()

    def push_new(self: StreamTail, batch: Batch) -> None:
        if not self._bases or batch.base_offset > self._bases[-1]:
            push(self, batch)

    with patch.object(Appender, "_send", show_at_once), patch.object(StreamTail, "push", push_new):
        yield


def receipt_before_stored() -> Iterator[None]:
    """A producer gets its receipt when the batch is sent on, not when it is stored."""
    append = Publisher.append

    def at_once(self: Publisher, batch: Batch, receipt: Any, answer: Any = None) -> Any:
        stored = append(self, batch, receipt, answer)
        if not receipt.done():
            receipt.set_result(Receipt(-1, (-1, -1)))
        return stored

    one_by_one = patch.object(Publisher, "publish_all", lambda self, producer, outgoings: None)
    with patch.object(Publisher, "append", at_once), one_by_one:
        yield
