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
    and properties, as filters of subscriptions have. `before`: those at lower offsets of
    their topic, so that a redrive in several calls does not reach letters that died again meanwhile."""

    topic: TopicName | None = None
    subscription: str | None = None
    key: bytes | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    sql: str = ""
    before: int | None = None


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """`death`: None of a message that does not say of itself that it is one, and cannot be put back."""

    offset: int
    message: Message
    death: Death | None


@dataclass(frozen=True, slots=True)
class LetterPage:
    """`next`: the offset from which another call goes on; None at the end. `looked_at`: how many there were.
    `end`: letters at this offset and above are not part of the page, nor of its next ones if it is passed on as
    `before`."""

    letters: Sequence[StoredLetter]
    next: int | None
    looked_at: int
    end: int


@dataclass(frozen=True, slots=True)
class Redriven:
    """`moved`: how many are where they came from again. `kept`: how many stayed, of those that were meant: the
    topic that they came from is no more, or somebody has them."""

    moved: int
    kept: int
    next: int | None
    looked_at: int
    end: int


class DeadLetterBox(Protocol):
    """The dead letters of one topic: the messages that its subscription `queue` has not acknowledged; all of
    them if there is no such subscription, as in topics that Pulsar's clients made for letters."""

    @property
    def waiting(self) -> int: ...

    async def page(self, wanted: LetterFilter, *, start: int, most: int) -> LetterPage:
        """From the offset on, the first ones that are meant. FilterError."""

    async def redrive(
        self,
        wanted: LetterFilter,
        *,
        start: int,
        most: int,
        check: Callable[[TopicName], None] | None = None,
        to: Callable[[Message], TopicName] | None = None,
    ) -> Redriven:
        """Put these back into the topics that they came from, exactly once, whatever happens; durable when it
        returns. `check`: raises for a topic into which nothing may be put. `to`: chooses another topic, or the
        partition of one, for each; then messages that name no topic are redriven, too. FilterError;
        SubscriptionBusyError if their subscription has consumers that take all in order."""
