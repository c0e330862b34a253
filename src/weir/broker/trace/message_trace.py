"""Who hears what becomes of the messages of a topic: the log of traces, spans for OpenTelemetry, or both.

Why a message is delivered no more, as traces say it.
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
    """Told nothing while it is not `on`."""

    @property
    def on(self) -> bool: ...

    def apply(self, policies: Policies) -> None: ...

    def stored(
        self, batches: Sequence[Batch], offset: int, seconds: float, *, producer: str = "", address: str = ""
    ) -> None:
        """One behind the other, which took so long."""

    def held(self, batch: Batch, place: HeldId, due_ms: int, *, producer: str = "", address: str = "") -> None:
        """Until a moment, or a decision."""

    def delivered(
        self, subscription: str, who: object, name: str, address: str, deliveries: Sequence[Delivery]
    ) -> None:
        """To a consumer of the subscription."""

    def settled(self, subscription: str, runs: Sequence[Run], kind: TraceKind, reason: str = "") -> None:
        """What became of these, of what was delivered."""

    def returned(self, subscription: str, who: object, runs: Sequence[Run] | None, reason: str = "") -> None:
        """A consumer gives back these offsets, or all that it has."""

    def dropped(self, subscription: str, batch: Batch, runs: Sequence[Run], reason: str) -> None:
        """Messages of the batch that no consumer of the subscription gets."""

    def kept(self, first: int, end: int) -> BitMap64:
        """Of these, what was told when it was stored, and may be told of with `passed_by`."""

    def passed_by(self, subscription: str, offsets: BitMap64, reason: str) -> None:
        """Messages that the subscription gets no more, delivered before or not."""

    def trimmed(self, start: int) -> None:
        """What is before this is no more, for anybody."""


class BothTraces:
    """Fills `MessageTrace`."""

    def __init__(self, *parts: MessageTrace) -> None:
        self._parts = parts

    @property
    def on(self) -> bool:
        return any(part.on for part in self._parts)

    def _who_hear(self) -> list[MessageTrace]:
        return [part for part in self._parts if part.on]

    def apply(self, policies: Policies) -> None:
        for part in self._parts:
            part.apply(policies)

    def stored(
        self, batches: Sequence[Batch], offset: int, seconds: float, *, producer: str = "", address: str = ""
    ) -> None:
        for part in self._who_hear():
            part.stored(batches, offset, seconds, producer=producer, address=address)

    def held(self, batch: Batch, place: HeldId, due_ms: int, *, producer: str = "", address: str = "") -> None:
        for part in self._who_hear():
            part.held(batch, place, due_ms, producer=producer, address=address)

    def delivered(
        self, subscription: str, who: object, name: str, address: str, deliveries: Sequence[Delivery]
    ) -> None:
        for part in self._who_hear():
            part.delivered(subscription, who, name, address, deliveries)

    def settled(self, subscription: str, runs: Sequence[Run], kind: TraceKind, reason: str = "") -> None:
        for part in self._who_hear():
            part.settled(subscription, runs, kind, reason)

    def returned(self, subscription: str, who: object, runs: Sequence[Run] | None, reason: str = "") -> None:
        for part in self._who_hear():
            part.returned(subscription, who, runs, reason)

    def dropped(self, subscription: str, batch: Batch, runs: Sequence[Run], reason: str) -> None:
        for part in self._who_hear():
            part.dropped(subscription, batch, runs, reason)

    def kept(self, first: int, end: int) -> BitMap64:
        found = BitMap64()
        for part in self._who_hear():
            found |= part.kept(first, end)
        return found

    def passed_by(self, subscription: str, offsets: BitMap64, reason: str) -> None:
        for part in self._who_hear():
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
    """`letters`: it becomes a dead letter."""
    words = _WORDS.get(reason, reason.value)
    return f"dead letter: {words}" if letters and reason is not Reason.REDRIVEN else words
