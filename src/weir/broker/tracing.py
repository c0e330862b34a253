"""Messages that carry W3C's `traceparent`: whoever exports traces hears when they were stored and delivered."""

from collections.abc import Sequence
from typing import Protocol

from weir.broker.api import Delivery
from weir.model.batch import Batch, BatchFormat
from weir.model.topics import TopicName
from weir.wire.translation import opened_size

_HEADER = b"traceparent"
#: What is compressed is opened up to this size, in bytes: a trace is worth little more.
_OPENED_BYTES = 16 * 1024
#: Where a record batch of Kafka says how it is compressed.
_KAFKA_ATTRIBUTES, _KAFKA_CODEC = 22, 7


class Tracing(Protocol):
    """Told of batches only in which `carries_trace` finds something. Must not take long."""

    def stored(self, topic: TopicName, batch: Batch, offset: int, seconds: float) -> None:
        """Its first message is at `offset` now, which took so long."""

    def delivered(self, topic: TopicName, subscription: str, delivery: Delivery) -> None:
        """To a consumer of the subscription; without one, to a reader by offset."""


def carries_trace(batch: Batch) -> bool:
    """Whether there may be the header in it: where its name stands, and in what is compressed and small enough to
    be opened for this; not where messages are encrypted."""
    return _HEADER in bytes(batch.payload) or _hides(batch)


def _hides(batch: Batch) -> bool:
    payload = batch.payload
    if batch.format is BatchFormat.KAFKA:
        packed = len(payload) > _KAFKA_ATTRIBUTES and payload[_KAFKA_ATTRIBUTES] & _KAFKA_CODEC
        return bool(packed) and len(payload) <= _OPENED_BYTES
    if batch.format is BatchFormat.PULSAR:
        return len(payload) <= _OPENED_BYTES and len(payload) < opened_size(batch) <= _OPENED_BYTES * 16
    return False


def note_stored(tracing: Tracing, topic: TopicName, batches: Sequence[Batch], offset: int, seconds: float) -> None:
    """Batches that were stored one behind the other."""
    for batch in batches:
        if carries_trace(batch):
            tracing.stored(topic, batch, offset, seconds)
        offset += batch.count


def note_delivered(tracing: Tracing, topic: TopicName, subscription: str, deliveries: Sequence[Delivery]) -> None:
    for delivery in deliveries:
        if carries_trace(delivery.batch):
            tracing.delivered(topic, subscription, delivery)


def note_fetched(tracing: Tracing, topic: TopicName, batches: Sequence[Batch]) -> None:
    """Batches that a reader by offset was given: whose it is in the name of, only its client knows."""
    note_delivered(tracing, topic, "", [Delivery(batch) for batch in batches])
