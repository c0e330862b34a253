"""Queue behavior of a topic or an in-memory queue, for the dispatchers of its subscriptions.

Also the priority of each message, from its header `weir-priority`, in every protocol.
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

#: The priority level of each message of a batch, as its producer set it; None if no message has one.
LevelsOf = Callable[[Batch], Sequence[int] | None]


class QueueHooks(Protocol):
    """The queue's rules that its dispatcher applies during delivery: they decide synchronously, and start slower
    work in the background. A message that they remove is aside: neither ready nor with a consumer, until
    `Subscription.ack(None, ...)` acknowledges it or `PerMessage.put_back` returns it; neither happens before the
    call returns."""

    def screen(self, batch: Batch, indices: Sequence[int]) -> Sequence[int]:
        """Return those of these messages (ascending, about to be delivered) that have expired and must not be
        delivered."""

    @property
    def waits(self) -> bool:
        """Whether a message in the queue has a known expiry time."""

    def apply(self) -> None:
        """Apply rules that have changed."""

    def returned(self, offsets: BitMap64, counts: Redeliveries) -> BitMap64 | None:
        """Return those of these messages, which consumers returned, that must not be redelivered. `counts`: their
        redelivery counts."""


class QueueMode:
    """The queue settings of a topic, updated in place when the rules change; dispatchers read them each time."""

    __slots__ = ("hooks", "priority", "single_active")

    def __init__(
        self, priority: Priority = NO_LEVELS, *, single_active: bool = False, hooks: QueueHooks | None = None
    ) -> None:
        #: Priority levels, and how long the lower ones wait. Without levels no batch is decoded.
        self.priority = priority
        #: Single active consumer: only the consumer that joined first is served.
        self.single_active = single_active
        self.hooks = hooks

    @property
    def levels(self) -> int:
        """Number of priority levels above 0; 0 if the queue has no priorities."""
        return self.priority.levels


_NAME = PRIORITY.encode()
#: A longer text is not a level.
_MOST_DIGITS = 9


def levels_in(formats: Mapping[BatchFormat, Format]) -> LevelsOf:
    """Return a function that reads the levels of a batch. A batch that cannot be decoded has none."""

    def levels_of(batch: Batch) -> Sequence[int] | None:
        try:
            if bytes(batch.payload).find(_NAME) < 0 and not _is_compressed(batch):
                return None  # most batches
            found = [_level(message.headers) for message in formats[batch.format].split(batch)]
        except WeirError:
            return None
        return found if len(found) == batch.count and any(found) else None

    return levels_of


def _is_compressed(batch: Batch) -> bool:
    """Whether the headers of the messages are compressed."""
    match batch.format:
        case BatchFormat.KAFKA:
            return record_batch.parse_header(batch.payload).compression is not record_batch.Compression.NONE
        case BatchFormat.PULSAR:
            metadata = parse_metadata(split_message(memoryview(batch.payload), verify=False))
            return int(metadata.compression) != int(Compression.NONE)
    return False


def _level(headers: Sequence[tuple[str, bytes | None]]) -> int:
    """The first valid value of the header; 0 if none is valid."""
    for name, value in headers:
        if name == PRIORITY and value is not None and len(value) <= _MOST_DIGITS and value.isdigit():
            return int(value)
    return 0
