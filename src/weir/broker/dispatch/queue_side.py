"""What a topic, or a queue in memory, is as a queue: for the dispatchers of its subscriptions."""

from collections.abc import Callable, Sequence
from typing import Protocol

from pyroaring import BitMap64

from weir.broker.dispatch.redeliveries import Redeliveries
from weir.model.batch import Batch
from weir.model.priority import NO_LEVELS, Priority

#: The level of each message of a batch, as its producer said it; None if none of them said any.
LevelsOf = Callable[[Batch], Sequence[int] | None]


class QueueHooks(Protocol):
    """The rules of a queue as its dispatcher asks them, in the middle of its work: they decide at once, and begin
    what takes longer. What they take is aside: neither ready nor with a consumer, until it is acknowledged
    (`Subscription.ack(None, ...)`) or `PerMessage.put_back`; neither before the call has returned."""

    def screen(self, batch: Batch, indices: Sequence[int]) -> Sequence[int]:
        """Messages that are about to be delivered, in ascending order: those that shall not be, since their time
        is over."""

    @property
    def waits(self) -> bool:
        """Whether a message that is in the queue expires at a time that is known."""

    def apply(self) -> None:
        """The rules have changed."""

    def returned(self, offsets: BitMap64, counts: Redeliveries) -> BitMap64 | None:
        """Messages that consumers gave back, and how often they were delivered: those that shall not be delivered
        again."""


class QueueSide:
    """Changed in place when the rules of the queue change; dispatchers look at it each time."""

    __slots__ = ("hooks", "priority", "single_active")

    def __init__(
        self, priority: Priority = NO_LEVELS, *, single_active: bool = False, hooks: QueueHooks | None = None
    ) -> None:
        #: Levels of priority, and how long the lower ones wait. Without levels nothing is opened to look for any.
        self.priority = priority
        #: One consumer of the queue at a time is served, the one that came first.
        self.single_active = single_active
        self.hooks = hooks

    @property
    def levels(self) -> int:
        """Levels of priority above 0; 0: none."""
        return self.priority.levels
