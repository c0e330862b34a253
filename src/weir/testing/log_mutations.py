"""Promises about the log that mistakes below any protocol break: entered by the scenarios that can see it."""

from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

from weir.broker.api.producers import Receipt
from weir.broker.publish.publisher import Publisher
from weir.model.batch import Batch
from weir.stream.appender import Appender
from weir.stream.log import Stream
from weir.stream.tail import StreamTail

_LOOK_AGAIN_S = 0.05


def seen_before_stored() -> Iterator[None]:
    """A batch is in the tail, and so can be read, as soon as it is sent to the bookies."""
    send, answered = Appender._send, Appender._answered
    push, read_old = StreamTail.push, Stream._read_old

    def show_at_once(self: Appender, writer: Any) -> None:
        sent = list(self._queue)
        send(self, writer)
        for append in sent:
            push(self._tail, append.batches)
        self._end_offset = self._written_to = self._next_offset
        self._changed()

    def answer_shown(self: Appender, placed: Any) -> None:
        shown = self._end_offset
        if placed.batches:
            self._end_offset = placed.batches[0].base_offset
        answered(self, placed)
        self._end_offset = self._written_to = max(self._end_offset, shown)

    def push_new(self: StreamTail, batches: Sequence[Batch]) -> None:
        last = self._bases[-1] if self._bases else -1
        push(self, [batch for batch in batches if batch.base_offset > last])

    async def read_later(self: Stream, offset: int, max_bytes: int) -> list[Batch]:
        """Where nothing is yet that was shown, whoever reads looks again and again: let time go by."""
        found = await read_old(self, offset, max_bytes)
        if not found:
            await self._context.runtime.clock.sleep(_LOOK_AGAIN_S)
        return found

    with (
        patch.object(Appender, "_send", show_at_once),
        patch.object(Appender, "_answered", answer_shown),
        patch.object(StreamTail, "push", push_new),
        patch.object(Stream, "_read_old", read_later),
    ):
        yield


def receipt_before_stored() -> Iterator[None]:
    """A producer gets its receipt when the batch is sent on, not when it is stored."""
    append = Publisher.append

    def at_once(self: Publisher, batch: Batch, receipt: Any, answer: Any = None, **more: Any) -> Any:
        stored = append(self, batch, receipt, answer, **more)
        if not receipt.done():
            receipt.set_result(Receipt(-1, (-1, -1)))
        return stored

    one_by_one = patch.object(Publisher, "publish_all", lambda self, producer, outgoings: None)
    with patch.object(Publisher, "append", at_once), one_by_one:
        yield
