"""Where a transaction stands, and how it ends for those who take part.

Positions of consumer groups.

What is remembered of idempotent producers.
"""

from dataclasses import dataclass
from enum import Enum

from weir.model.ids import value


class TransactionState(Enum):
    """By Kafka's names."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


class Fate(Enum):
    """What became of a transaction that a topic has open."""

    #: It may go on, or is being ended: its marker will come.
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    #: It is over, and nobody knows how it ended.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """The decision about a producer's transaction. `epoch`: that the marker carries. `round`: which of its
    transactions it is about, by a number that grows from one to the next, whoever coordinates them: so what comes
    late, sent by a coordinator that was replaced or for the second time, never ends a later one."""

    producer_id: int
    epoch: int
    commit: bool
    round: int


@value
class Stored:
    """A batch in the log: its first and last sequence number, where it begins, and its checksum if it is known."""

    epoch: int
    first: int
    last: int
    offset: int
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A position: the offset of the next message to process, and what the group wants kept with it."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    #: When it was committed, in milliseconds since 1970; 0 if it was placed by other means.
    commit_ms: int = 0
