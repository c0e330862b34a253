"""What waits for its moment, as values."""

from dataclasses import dataclass

from weir.model.batch import HeldId

#: Due at no moment: it waits for a decision.
FOREVER_MS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class HeldItem:
    """One held batch."""

    id: HeldId
    due_ms: int
    #: How many messages it has, and the size of its payload.
    count: int
    size: int


@dataclass(frozen=True, slots=True)
class HeldCount:
    """How much is held."""

    batches: int
    messages: int
