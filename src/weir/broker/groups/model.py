"""Consumer groups as values: their states as a table, what members ask, and what they are answered.

How a group divides its work is its members' business: the coordinator collects what each can do, has one of them
(the leader) divide, and hands out the shares, all of it opaque.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from weir.model.errors import InvariantError
from weir.model.topics import TopicName


class GroupState(Enum):
    #: No members; positions may be kept.
    EMPTY = "empty"
    #: Members are awaited, each with what it can do.
    JOINING = "joining"
    #: Everyone knows who is in; the leader's shares are awaited.
    SYNCING = "syncing"
    #: Everyone has a share.
    STABLE = "stable"
    #: Deleted, or moved to another broker.
    DEAD = "dead"


class GroupEvent(Enum):
    #: Somebody came, changed or left: divide anew.
    REBALANCE = "rebalance"
    #: All who will come have come.
    GATHERED = "gathered"
    #: The same, and it is nobody.
    DESERTED = "deserted"
    #: The shares are known, and durable.
    DIVIDED = "divided"
    END = "end"


#: What follows upon what; anything else is a bug.
STATES: Mapping[GroupState, Mapping[GroupEvent, GroupState]] = {
    GroupState.EMPTY: {GroupEvent.REBALANCE: GroupState.JOINING, GroupEvent.END: GroupState.DEAD},
    GroupState.JOINING: {
        GroupEvent.GATHERED: GroupState.SYNCING,
        GroupEvent.DESERTED: GroupState.EMPTY,
        GroupEvent.END: GroupState.DEAD,
    },
    GroupState.SYNCING: {
        GroupEvent.REBALANCE: GroupState.JOINING,
        GroupEvent.DIVIDED: GroupState.STABLE,
        GroupEvent.END: GroupState.DEAD,
    },
    GroupState.STABLE: {GroupEvent.REBALANCE: GroupState.JOINING, GroupEvent.END: GroupState.DEAD},
    GroupState.DEAD: {},
}


def next_state(state: GroupState, event: GroupEvent) -> GroupState:
    following = STATES[state].get(event)
    if following is None:
        raise InvariantError(f"a group that is {state.value} cannot {event.value}")
    return following


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """One value for all groups of a broker."""

    #: How long the first member of an empty group waits for others.
    initial_delay_s: float = 0.25
    #: How long members may ask to be silent.
    min_session_s: float = 6.0
    max_session_s: float = 1800.0
    #: A new member that waits for the others is given up after so long, whatever it asked for.
    new_member_s: float = 300.0
    max_members: int = 5_000
    max_groups: int = 100_000
    #: What a member may say of itself, and all of a group together; what they may be given together. A group must
    #: fit into one entry of a ledger.
    max_member_bytes: int = 1024 * 1024
    max_said_bytes: int = 16 * 1024 * 1024
    max_assigned_bytes: int = 16 * 1024 * 1024
    #: Partitions that stats remember of a group's shares, over all of its members.
    max_shown_parts: int = 100_000
    #: An empty group's positions are forgotten after so long.
    retention_s: float = 7 * 86_400.0
    #: How often groups that are to be forgotten are looked for.
    sweep_s: float = 600.0


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A member comes, or comes again. `protocols`: ways of dividing that it knows, the best first, each with what
    the leader must know of it. `instance_id`: of a static member, which keeps its share when it restarts."""

    protocol_type: str
    protocols: Mapping[str, bytes]
    session_s: float
    rebalance_s: float
    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    #: Whether a new member is first given an id to come again with, so that one that does not costs little.
    id_first: bool = False
    #: Whether a static leader can be told that it need not divide.
    may_skip: bool = False

    @property
    def size(self) -> int:
        """What must be remembered of it, in bytes."""
        texts = (self.instance_id or "", self.client_id, self.client_host, *self.protocols)
        return sum(map(len, texts)) + sum(map(len, self.protocols.values()))


@dataclass(frozen=True, slots=True)
class Joined:
    """The generation that the member is in. `members`: told to the leader only: id, instance id, what it said."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member_id: str
    members: Sequence[tuple[str, str | None, bytes]] = ()
    #: The leader need not divide: everyone's share is as it was.
    skip: bool = False


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A member awaits its share; the leader brings everyone's. `parts`: which partitions these are, for stats."""

    generation: int
    member_id: str
    instance_id: str | None = None
    #: As the member knows them; None if it does not say.
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)
    parts: Mapping[str, Sequence[TopicName]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Synced:
    protocol_type: str
    protocol: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """`metadata`: what it said for the protocol that was chosen last, nothing if it does not know that.
    `assignment`: the share that it was given last."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""
    parts: Sequence[TopicName] = ()


@dataclass(frozen=True, slots=True)
class GroupInfo:
    name: str
    state: GroupState
    protocol_type: str = ""
    protocol: str = ""
    generation: int = 0
    members: Sequence[MemberInfo] = ()
