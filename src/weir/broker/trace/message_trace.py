"""The tracing interface of a topic: message events go to the trace log, to OpenTelemetry spans, or to both.

Also the texts for the reasons why the broker gives up a message.
"""

from collections.abc import Sequence
from typing import Protocol

from pyroaring import BitMap64

from weir.broker.api.consumers import Delivery
from weir.model.batch import Batch, HeldId, Run
from weir.model.messages import TraceKind
from weir.model.policies import Policies
from weir.wire.amqp.dead_letter import Reason


class MessageTrace(Protocol):
    """Receives the events of a topic's messages. Callers skip it while it is not `on`."""

    @property
    def on(self) -> bool: ...

    def apply(self, policies: Policies) -> None: ...

    def stored(
        self, batches: Sequence[Batch], offset: int, seconds: float, *, producer: str = "", address: str = ""
    ) -> None:
        """Batches were stored in sequence from `offset` on; `seconds`: the duration of the write."""

    def held(self, batch: Batch, place: HeldId, due_ms: int, *, producer: str = "", address: str = "") -> None:
        """A batch waits for its delivery time, or for a decision (half message)."""

    def delivered(
        self, subscription: str, who: object, name: str, address: str, deliveries: Sequence[Delivery]
    ) -> None:
        """Messages were sent to a consumer of the subscription."""

    def settled(self, subscription: str, runs: Sequence[Run], kind: TraceKind, reason: str = "") -> None:
        """Delivered messages were acknowledged, scheduled for a retry or dropped."""

    def returned(self, subscription: str, who: object, runs: Sequence[Run] | None, reason: str = "") -> None:
        """A consumer returned these offsets, or all of its messages."""

    def dropped(self, subscription: str, batch: Batch, runs: Sequence[Run], reason: str) -> None:
        """The subscription skips messages of the batch."""

    def kept(self, first: int, end: int) -> BitMap64:
        """The offsets in the range with a recorded `stored` event; `passed_by` can report these."""

    def passed_by(self, subscription: str, offsets: BitMap64, reason: str) -> None:
        """The subscription will not receive these messages any more, delivered before or not."""

    def trimmed(self, start: int) -> None:
        """Retention removed all messages before `start`."""


class BothTraces:
    """Implements `MessageTrace`: passes events to several traces."""

    def __init__(self, *parts: MessageTrace) -> None:
        self._parts = parts

    @property
    def on(self) -> bool:
        return any(part.on for part in self._parts)

    def _active(self) -> list[MessageTrace]:
        return [part for part in self._parts if part.on]

    def apply(self, policies: Policies) -> None:
        for part in self._parts:
            part.apply(policies)

    def stored(
        self, batches: Sequence[Batch], offset: int, seconds: float, *, producer: str = "", address: str = ""
    ) -> None:
        for part in self._active():
            part.stored(batches, offset, seconds, producer=producer, address=address)

    def held(self, batch: Batch, place: HeldId, due_ms: int, *, producer: str = "", address: str = "") -> None:
        for part in self._active():
            part.held(batch, place, due_ms, producer=producer, address=address)

    def delivered(
        self, subscription: str, who: object, name: str, address: str, deliveries: Sequence[Delivery]
    ) -> None:
        for part in self._active():
            part.delivered(subscription, who, name, address, deliveries)

    def settled(self, subscription: str, runs: Sequence[Run], kind: TraceKind, reason: str = "") -> None:
        for part in self._active():
            part.settled(subscription, runs, kind, reason)

    def returned(self, subscription: str, who: object, runs: Sequence[Run] | None, reason: str = "") -> None:
        for part in self._active():
            part.returned(subscription, who, runs, reason)

    def dropped(self, subscription: str, batch: Batch, runs: Sequence[Run], reason: str) -> None:
        for part in self._active():
            part.dropped(subscription, batch, runs, reason)

    def kept(self, first: int, end: int) -> BitMap64:
        found = BitMap64()
        for part in self._active():
            found |= part.kept(first, end)
        return found

    def passed_by(self, subscription: str, offsets: BitMap64, reason: str) -> None:
        for part in self._active():
            part.passed_by(subscription, offsets, reason)

    def trimmed(self, start: int) -> None:
        for part in self._parts:
            part.trimmed(start)


_WORDS = {
    Reason.REJECTED: "rejected",
    Reason.EXPIRED: "expired: its time to live was over",
    Reason.MAX_LENGTH: "the queue was full",
    Reason.DELIVERY_LIMIT: "delivered too often",
    Reason.REDRIVEN: "put back where it came from",
}


def given_up_words(reason: Reason, *, letters: bool) -> str:
    """The text for a reason. `letters`: the message becomes a dead letter."""
    words = _WORDS.get(reason, reason.value)
    return f"dead letter: {words}" if letters and reason is not Reason.REDRIVEN else words
