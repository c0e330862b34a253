"""Messages that carry W3C's `traceparent`: whoever exports traces hears when they were stored and delivered."""

from collections.abc import Sequence
from typing import Protocol

from weir.broker.api import Delivery
from weir.model.batch import Batch
from weir.model.topics import TopicName

_HEADER = b"traceparent"


class Tracing(Protocol):
    """Told of batches only in which `carries_trace` finds something. Must not take long."""

    def stored(self, topic: TopicName, batch: Batch, offset: int, seconds: float) -> None:
        """Its first message is at `offset` now, which took so long."""

    def delivered(self, topic: TopicName, subscription: str, delivery: Delivery) -> None: ...


def carries_trace(batch: Batch) -> bool:
    """Whether there may be the header in it; not where messages are compressed or encrypted."""
    return _HEADER in bytes(batch.payload)


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
