"""Messages that carry W3C's `traceparent`: whoever exports traces hears what becomes of them."""

from collections.abc import Sequence
from dataclasses import dataclass
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

#: What further spans of a message are children of: the exporter's, and nobody else's.
SpanParent = object


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a message of a subscription: `what` is a verb. `since_ms`: when its consumer got it; 0 if
    none did."""

    what: str
    subscription: str
    consumer: str = ""
    reason: str = ""
    since_ms: int = 0


class Tracing(Protocol):
    """Told of batches only in which `carries_trace` finds something. Must not take long. Answers offsets of the
    messages whose traces are exported, with the parents of what is told of them later."""

    def stored(
        self, topic: TopicName, batch: Batch, offset: int, seconds: float
    ) -> Sequence[tuple[int, SpanParent]]:
        """Its first message is at `offset` now, which took so long. The parents are the producers' spans."""

    def delivered(
        self, topic: TopicName, subscription: str, delivery: Delivery
    ) -> Sequence[tuple[int, SpanParent]]:
        """To a consumer of the subscription; without one, to a reader by offset. The parents are the deliveries'
        spans."""

    def parents(self, batch: Batch, wanted: int | None) -> Sequence[tuple[int, SpanParent]]:
        """The producers' spans of some messages (as bits; None: all) of which nothing was told yet."""

    def became(self, topic: TopicName, offset: int, parent: SpanParent, fate: Fate) -> None:
        """It was acknowledged, is retried, or is dropped."""


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


def note_fetched(tracing: Tracing, topic: TopicName, batches: Sequence[Batch]) -> None:
    """Batches that a reader by offset was given: whose it is in the name of, only its client knows."""
    for batch in batches:
        if carries_trace(batch):
            tracing.delivered(topic, "", Delivery(batch))
