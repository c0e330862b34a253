"""Decodes stored batches for AMQP consumers, caches decoded batches, and adds delivery headers.

Queues deliver single messages of a batch. With a small prefetch the same batch is delivered in many parts, so the
cache stores each batch of which a consumer received a part. Headers: x-delivery-count and x-stream-offset.
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

#: Cache size in bytes of payloads, for all queues together.
_KEPT_BYTES = 16 * 1024 * 1024


def is_long(batch: Batch) -> bool:
    """Whether decoding the batch takes so long that other tasks must get turns meanwhile."""
    return batch.count > STEP_MESSAGES or (batch.format is not BatchFormat.MESSAGES and batch.count > 1)


def opened_in_steps(batch: Batch, queue: str, most_bytes: int) -> Steps[list[Outgoing]]:
    """Decode one message per offset. `most_bytes` limits the properties of messages from other protocols."""
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
    """Cache of decoded batches of all queues. The key is the payload object, which all consumers share."""

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
        # The entry references the payload, so no other object can have its id.
        self._kept[id(batch.payload)] = (batch.payload, found)
        self._bytes += size
        while self._bytes > self._most:
            _, (payload, _) = self._kept.popitem(last=False)
            self._bytes -= len(payload)


DELIVERY_COUNT = "x-delivery-count"
STREAM_OFFSET = "x-stream-offset"
#: In a header frame, class, weight and body size precede the properties.
_HEAD_BYTES = 12


def marked(message: Outgoing, kind: QueueKind, offset: int, redelivered: int) -> Outgoing:
    """Add x-stream-offset to messages of streams, and x-delivery-count to those of quorum queues."""
    if kind is QueueKind.STREAM:
        return _with(message, STREAM_OFFSET, Field("l", offset))
    if kind is QueueKind.QUORUM:
        return _with(message, DELIVERY_COUNT, Field("l", redelivered))
    return message


def _with(message: Outgoing, name: str, field: Field) -> Outgoing:
    properties = decode_properties(message.header[_HEAD_BYTES:])
    headers = (properties.headers or NO_FIELDS).replacing(name, field)
    return outgoing(message.envelope, encode_properties(replace(properties, headers=headers)), message.body)
