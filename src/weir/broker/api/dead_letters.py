"""Dead letters that wait in a topic: looked at, and put back where they came from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from weir.model.dead_letters import Death
from weir.model.message import Message
from weir.model.topics import TopicName


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which dead letters are meant: those for which all holds that is said. `topic`, `subscription`: where they
    come from, any partition if none is named. `since_ms`, `until_ms`: when they died. `sql`: a condition over key
    and properties, as filters of subscriptions have."""

    topic: TopicName | None = None
    subscription: str | None = None
    key: bytes | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    sql: str = ""


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """`death`: None of a message that does not say of itself that it is one, and cannot be put back."""

    offset: int
    message: Message
    death: Death | None


@dataclass(frozen=True, slots=True)
class LetterPage:
    """`next`: the offset from which another call goes on; None at the end. `looked_at`: how many there were."""

    letters: Sequence[StoredLetter]
    next: int | None
    looked_at: int


@dataclass(frozen=True, slots=True)
class Redriven:
    """`moved`: how many are where they came from again. `kept`: how many stayed, of those that were meant: the
    topic that they came from is no more, or somebody has them."""

    moved: int
    kept: int
    next: int | None
    looked_at: int


class DeadLetterBox(Protocol):
    """The dead letters of one topic: what its subscription `queue` has not acknowledged."""

    @property
    def waiting(self) -> int: ...

    async def page(self, wanted: LetterFilter, *, start: int, most: int) -> LetterPage:
        """From the offset on, the first ones that are meant. FilterError."""

    async def redrive(
        self, wanted: LetterFilter, *, start: int, most: int, check: Callable[[TopicName], None] | None = None
    ) -> Redriven:
        """Put these back into the topics that they came from, exactly once, whatever happens; durable when it
        returns. `check`: raises for a topic into which nothing may be put. FilterError; SubscriptionBusyError if
        their subscription has consumers that take all in order."""
