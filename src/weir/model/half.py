"""Half messages as values: what is prepared, how it is decided, what is known of one."""

from dataclasses import dataclass
from enum import Enum

from weir.model.batch import HeldId

#: Of a producer group's name, as UTF-8.
MAX_GROUP_BYTES = 1024
#: The longest that nobody is asked about a half message.
MAX_RECOVERY_MS = 30 * 24 * 3600 * 1000


class Decision(Enum):
    COMMIT = "commit"
    ROLL_BACK = "rollback"


@dataclass(frozen=True, slots=True)
class Preparation:
    """That a batch is a half message. `group`: producers that can be asked what became of it. `recovery_ms`:
    nobody is asked before; None: as the broker is set."""

    group: str
    recovery_ms: int | None = None


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """One that is not decided. `checks`: how often it was asked about, or nobody was there to be asked."""

    id: HeldId
    group: str
    prepared_ms: int
    next_check_ms: int
    checks: int
    #: How many messages it has, and the size of its payload.
    count: int
    size: int


@dataclass(frozen=True, slots=True)
class Decided:
    """`again`: it was decided so before. `offset`: where a committed one begins in the topic; -1 where that is not
    known any more."""

    decision: Decision
    offset: int = -1
    again: bool = False


@dataclass(frozen=True, slots=True)
class HalfCounts:
    """Of a topic since it was loaded, and how many wait now; in batches."""

    waiting: int = 0
    prepared: int = 0
    committed: int = 0
    rolled_back: int = 0
    #: Of those rolled back, the ones that nothing was heard of.
    given_up: int = 0
    #: Questions that a producer was asked, and those that nobody was there for.
    checked: int = 0
    unasked: int = 0
