"""Consumer groups as values: their states as a table, what members ask, and what they are answered.

How a group divides its work is its members' business: the coordinator collects what each can do, has one of them
(the leader) divide, and hands out the shares, all of it opaque.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from weir.broker.api.groups import GroupState
from weir.model.errors import InvariantError
from weir.model.topics import TopicName


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
    #: Groups that one role may have made at a time, unless it is a superuser.
    max_groups_per_role: int = 1_000
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
class GroupClaims:
    """Whose a group is. `founder`: the role that made it; nobody if that was not noted. `parts`: where it has
    positions, and the topics of which members have partitions or say that they read them."""

    founder: str
    roles: frozenset[str]
    parts: tuple[TopicName, ...]
