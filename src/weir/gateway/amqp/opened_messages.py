"""Stored batches as AMQP's consumers read them, opened once.

A queue gives out single messages of a batch. Where its consumers take few at a time, the same batch comes again
and again, so batches of which a part was asked for are kept for a while.

What a queue says about a message that it delivers, in its headers: how often it came, and where it lies.
"""

from collections import OrderedDict
from dataclasses import replace

from weir.model.batch import Batch, BatchFormat
from weir.model.check import STEP_MESSAGES, Steps, finish
from weir.model.ids import Buffer
from weir.model.messages import Message
from weir.model.queues import QueueKind
from weir.wire.amqp.content import Outgoing, outgoing, outgoing_native, stored_outgoing
from weir.wire.amqp.message import outgoing_of
from weir.wire.amqp.properties import decode_properties, encode_properties
from weir.wire.amqp.tables import NO_FIELDS, Field
from weir.wire.formats.table import opening

#: What is kept, in bytes of payloads, over all queues.
_KEPT_BYTES = 16 * 1024 * 1024


def is_long(batch: Batch) -> bool:
    """Whether others should have their turn while the batch is opened."""
    return batch.count > STEP_MESSAGES or (batch.format is not BatchFormat.MESSAGES and batch.count > 1)


def opened_in_steps(batch: Batch, queue: str, most_bytes: int) -> Steps[list[Outgoing]]:
    """One for each offset. `most_bytes`: of the properties of a message that came by another protocol."""
    if batch.format is BatchFormat.MESSAGES:
        stored = stored_outgoing(batch.payload)
        if stored is not None and len(stored) == batch.count:
            return stored
    messages = yield from opening(batch)
    found: list[Outgoing] = []
    for message in messages:
        found.append(_outgoing(message, queue, most_bytes))
        if not len(found) % STEP_MESSAGES:
            yield STEP_MESSAGES
    return found * batch.count if len(found) == 1 else found


def opened(batch: Batch, queue: str, most_bytes: int) -> list[Outgoing]:
    return finish(opened_in_steps(batch, queue, most_bytes))


def _outgoing(message: Message, queue: str, most_bytes: int) -> Outgoing:
    native = outgoing_native(message)
    return native if native is not None else outgoing_of(message, queue, most_bytes)


class DecodedBatches:
    """Of all queues, by the payload itself: it is in memory once, however many consumers get a part of it."""

    def __init__(self, kept_bytes: int = _KEPT_BYTES) -> None:
        self._most = kept_bytes
        self._bytes = 0
        self._kept: OrderedDict[int, tuple[Buffer, list[Outgoing]]] = OrderedDict()

    def find(self, batch: Batch) -> list[Outgoing] | None:
        found = self._kept.get(id(batch.payload))
        return found[1] if found is not None else None

    def keep(self, batch: Batch, found: list[Outgoing]) -> None:
        size = len(batch.payload)
        if size > self._most // 4 or id(batch.payload) in self._kept:
            return
        # The payload is kept along, so no other can have its identity.
        self._kept[id(batch.payload)] = (batch.payload, found)
        self._bytes += size
        while self._bytes > self._most:
            _, (payload, _) = self._kept.popitem(last=False)
            self._bytes -= len(payload)


DELIVERY_COUNT = "x-delivery-count"
STREAM_OFFSET = "x-stream-offset"
#: Class, weight and size of the body come before the properties in a header frame.
_HEAD_BYTES = 12


def marked(message: Outgoing, kind: QueueKind, offset: int, redelivered: int) -> Outgoing:
    """A stream says the offset of each message, a quorum queue how often it was delivered before."""
    if kind is QueueKind.STREAM:
        return _with(message, STREAM_OFFSET, Field("l", offset))
    if kind is QueueKind.QUORUM:
        return _with(message, DELIVERY_COUNT, Field("l", redelivered))
    return message


def _with(message: Outgoing, name: str, field: Field) -> Outgoing:
    properties = decode_properties(message.header[_HEAD_BYTES:])
    headers = (properties.headers or NO_FIELDS).replacing(name, field)
    return outgoing(message.envelope, encode_properties(replace(properties, headers=headers)), message.body)
