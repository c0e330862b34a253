"""What a topic, or a queue in memory, is as a queue: for the dispatchers of its subscriptions.

The priority of each message of a batch, whatever protocol it came by: the header `weir-priority`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pyroaring import BitMap64

from weir.broker.subscriptions.redelivery import Redeliveries
from weir.model.batch import Batch, BatchFormat
from weir.model.errors import WeirError
from weir.model.policies import NO_LEVELS, PRIORITY, Priority
from weir.wire.formats.format import Format
from weir.wire.kafka import record_batch
from weir.wire.pulsar.batch import Compression
from weir.wire.pulsar.message import parse_metadata, split_message

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


_NAME = PRIORITY.encode()
#: A longer text is no level.
_MOST_DIGITS = 9


def levels_in(formats: Mapping[BatchFormat, Format]) -> LevelsOf:
    """How to look for them. A batch that cannot be opened has none."""

    def levels_of(batch: Batch) -> Sequence[int] | None:
        try:
            if bytes(batch.payload).find(_NAME) < 0 and not _is_compressed(batch):
                return None  # nearly all
            found = [_level(message.headers) for message in formats[batch.format].split(batch)]
        except WeirError:
            return None
        return found if len(found) == batch.count and any(found) else None

    return levels_of


def _is_compressed(batch: Batch) -> bool:
    """Whether what its messages say cannot be seen from outside."""
    match batch.format:
        case BatchFormat.KAFKA:
            return record_batch.parse_header(batch.payload).compression is not record_batch.Compression.NONE
        case BatchFormat.PULSAR:
            metadata = parse_metadata(split_message(memoryview(batch.payload), verify=False))
            return int(metadata.compression) != int(Compression.NONE)
    return False


def _level(headers: Sequence[tuple[str, bytes | None]]) -> int:
    """What cannot be a level is none; the first that can counts."""
    for name, value in headers:
        if name == PRIORITY and value is not None and len(value) <= _MOST_DIGITS and value.isdigit():
            return int(value)
    return 0
