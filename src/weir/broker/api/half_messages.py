"""Half messages: prepared, seen by nobody before they are committed, asked about when nothing is heard of them.

One is prepared by publishing an `Outgoing` whose `half` is set; the receipt is `held`, and its position the id. It
is decided by `StoredTopic.half.decide`. When nothing was heard for its recovery time, and then again after every
interval, a live producer of its group is asked (`Broker.half_checkers`); after so many rounds it is rolled back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from weir.model.batch import Batch, HeldId
from weir.model.half import Decided, Decision, HalfCounts, HalfMessage
from weir.model.topics import TopicName


@dataclass(frozen=True, slots=True)
class HalfCheck:
    """The question what became of a half message; it is answered by deciding it."""

    topic: TopicName
    message: HalfMessage
    #: As it was prepared.
    batch: Batch


class HalfChecker(Protocol):
    """A live producer."""

    def check_half(self, check: HalfCheck) -> bool:
        """Ask it, at once; False if it cannot be asked now, and another is to be."""


class HalfCheckers(Protocol):
    """Who can be asked, of all producers that are connected to this broker."""

    def register(self, group: str, checker: HalfChecker, *, role: str) -> Callable[[], None]:
        """From now on the checker is asked about half messages of the group, in turn with others, if the role may
        produce to their topics; answers how to end that. Fine to end twice."""


class HalfMessages(Protocol):
    """The half messages of one topic."""

    @property
    def counts(self) -> HalfCounts: ...

    async def waiting(self, *, group: str | None = None) -> Sequence[HalfMessage]:
        """Those that are not decided, or of a group, the oldest first."""

    async def get(self, half: HeldId) -> tuple[HalfMessage, Batch]:
        """One that is not decided; NotHeldError if there is none."""

    async def decide(self, half: HeldId, decision: Decision, *, role: str) -> Decided:
        """Commit it, so that it is in the topic when this returns, or roll it back, so that nobody will ever see
        it. Fine to ask again. HalfDecidedError if it was decided otherwise; NotHeldError if there never was such
        a message, or it was decided long ago."""
