"""Calls of coordinators: to partitions and groups that a transaction or a position is about, and back from them.

Parts are named by tuples of pairs, since a name cannot be a key. What went wrong with one of them comes as a
`Failure` beside it; what went wrong with all of them fails the call.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset, Fate, TransactionEnd
from weir.wire.peer.calls import Done
from weir.wire.peer.protocol import Call, Failure, PeerRequest

# --- of a coordinator of transactions, to who takes part ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EndInPart(PeerRequest[Done]):
    """Store the marker of a decided transaction, if it has anything open in this partition."""

    part: TopicName
    end: TransactionEnd


@dataclass(frozen=True, slots=True)
class EndInGroup(PeerRequest[Done]):
    """Place the positions that the transaction holds ready in this group, or forget them."""

    group: str
    end: TransactionEnd


@dataclass(frozen=True, slots=True)
class KeptGroup:
    """What the coordinator calls a group."""

    name: str


@dataclass(frozen=True, slots=True)
class AskKeptGroup(PeerRequest[KeptGroup]):
    """The group that a role means, if it may use it."""

    role: str
    name: str


# --- to a coordinator of transactions ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verified:
    """The producer's transaction is open. `round`: which one it is; it grows from one to the next."""

    round: int


@dataclass(frozen=True, slots=True)
class VerifyWrite(PeerRequest[Verified]):
    """Whether the producer may begin to write to the partition in a transaction."""

    part: TopicName
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class FateAnswer:
    fate: Fate


@dataclass(frozen=True, slots=True)
class AskFate(PeerRequest[FateAnswer]):
    """What became of what the producer has open in the partition, to which it wrote last at `seen_ms`."""

    part: TopicName
    producer_id: int
    seen_ms: int


@dataclass(frozen=True, slots=True)
class ConfirmEnd(PeerRequest[Done]):
    """Fails unless the producer's transaction in the partition is, at this moment, decided to end so."""

    part: TopicName
    producer_id: int
    commit: bool


@dataclass(frozen=True, slots=True)
class JoinParts(PeerRequest[Done]):
    """Make partitions part of the transaction of a role's transactional id."""

    role: str
    name: str
    producer_id: int
    epoch: int
    parts: tuple[TopicName, ...]


@dataclass(frozen=True, slots=True)
class JoinGroup(PeerRequest[Verified]):
    """Whether the transaction of a role's transactional id may move positions of the group; `joins`: it may from
    now on."""

    role: str
    name: str
    producer_id: int
    epoch: int
    group: str
    joins: bool


# --- sinks -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EpochCommitted:
    """Whether it was committed now, and not before."""

    now: bool


@dataclass(frozen=True, slots=True)
class SinkWriter:
    """One of the transactions that a sink commits."""

    name: str
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CommitEpoch(PeerRequest[EpochCommitted]):
    """Commit the transactions of a role's sink together, once."""

    role: str
    sink: str
    epoch: int
    writers: tuple[SinkWriter, ...]
    #: The id of the query whose epoch it is, and of the one that it takes the sink over from, as far as known.
    query: str = ""
    instead_of: str = ""


@dataclass(frozen=True, slots=True)
class SinkEpoch:
    epoch: int


@dataclass(frozen=True, slots=True)
class AskSinkEpoch(PeerRequest[SinkEpoch]):
    """The last epoch that a role's sink has written."""

    role: str
    sink: str


@dataclass(frozen=True, slots=True)
class ForgetSink(PeerRequest[Done]):
    """A role's sink writes no more."""

    role: str
    sink: str


# --- of a coordinator of groups, to partitions -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartPosition:
    """A group's position on a partition; neither position nor failure: it has none."""

    part: TopicName
    position: CommittedOffset | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class PartPositions:
    found: tuple[PartPosition, ...]


@dataclass(frozen=True, slots=True)
class PlacePositions(PeerRequest[PartPositions]):
    """Place the group on partitions. `order` grows from one placing to the next; what comes late is left."""

    group: str
    order: int
    positions: tuple[PartPosition, ...]


@dataclass(frozen=True, slots=True)
class FetchPositions(PeerRequest[PartPositions]):
    """Where the group is."""

    group: str
    parts: tuple[TopicName, ...]


class DropRule(Enum):
    """Which positions of a group go."""

    #: All, unless other consumers use the subscription.
    ALL = "all"
    #: Those committed before a moment; what others use is the group's no longer.
    EXPIRED = "expired"
    #: The same, but what others use stays the group's.
    UNREAD = "unread"


@dataclass(frozen=True, slots=True)
class PartDropped:
    """`left_ms`: when the position that stays was committed; -1 if it is gone."""

    part: TopicName
    left_ms: int = -1
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class PartsDropped:
    results: tuple[PartDropped, ...]


@dataclass(frozen=True, slots=True)
class DropPositions(PeerRequest[PartsDropped]):
    """Forget positions of the group."""

    group: str
    parts: tuple[TopicName, ...]
    rule: DropRule
    before_ms: int = 0


CALLS: tuple[Call[Any], ...] = (
    Call(32, "end_in_part", EndInPart, Done),
    Call(33, "end_in_group", EndInGroup, Done),
    Call(34, "verify_write", VerifyWrite, Verified),
    Call(35, "ask_fate", AskFate, FateAnswer),
    Call(36, "confirm_end", ConfirmEnd, Done),
    Call(37, "join_parts", JoinParts, Done),
    Call(38, "join_group", JoinGroup, Verified),
    Call(39, "ask_kept_group", AskKeptGroup, KeptGroup),
    Call(40, "place_positions", PlacePositions, PartPositions),
    Call(41, "fetch_positions", FetchPositions, PartPositions),
    Call(42, "drop_positions", DropPositions, PartsDropped),
    Call(43, "commit_epoch", CommitEpoch, EpochCommitted),
    Call(44, "ask_sink_epoch", AskSinkEpoch, SinkEpoch),
    Call(45, "forget_sink", ForgetSink, Done),
)
