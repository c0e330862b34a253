"""Consumer groups: membership requests and responses, committed offsets, and the view of administrators."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from weir.broker.api.broker import Owner
from weir.model.errors import WeirError
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset


class GroupState(Enum):
    #: No members; committed offsets may exist.
    EMPTY = "empty"
    #: The group waits for members to join with their protocols.
    JOINING = "joining"
    #: All members know the generation; the group waits for the leader's assignments.
    SYNCING = "syncing"
    #: All members have assignments.
    STABLE = "stable"
    #: Deleted, or moved to another broker.
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A member joins or rejoins. `protocols`: its supported assignment protocols, the preferred one first, each
    with the member's metadata for the leader. `instance_id`: id of a static member, which keeps its assignment
    across restarts."""

    protocol_type: str
    protocols: Mapping[str, bytes]
    session_s: float
    rebalance_s: float
    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    #: Whether a new member first receives an id to rejoin with, so that a member that never rejoins costs little.
    id_first: bool = False
    #: Whether a static leader understands a response to skip the assignment.
    may_skip: bool = False
    #: The member's role, and its subscribed topics, reduced to those that the role may consume.
    role: str = ""
    topics: Sequence[TopicName] = ()
    #: Whether the number of groups of the role is limited.
    bounded: bool = False

    @property
    def size(self) -> int:
        """The memory for this request, in bytes."""
        texts = (self.instance_id or "", self.client_id, self.client_host, *self.protocols)
        return sum(map(len, texts)) + sum(map(len, self.protocols.values()))


@dataclass(frozen=True, slots=True)
class Joined:
    """The response to a join: the member's generation. `members`, for the leader only: id, instance id,
    metadata."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member_id: str
    members: Sequence[tuple[str, str | None, bytes]] = ()
    #: The leader skips the assignment: all assignments are unchanged.
    skip: bool = False


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A member waits for its assignment; the leader sends all assignments. `parts`: the partitions of each member,
    for stats."""

    generation: int
    member_id: str
    instance_id: str | None = None
    #: The member's view of the protocol; None if the request has no such field.
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
    """A member of a group. `metadata`: its metadata for the last chosen protocol, empty if it does not support
    that protocol. `assignment`: its last assignment."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""
    parts: Sequence[TopicName] = ()
    role: str = ""


@dataclass(frozen=True, slots=True)
class GroupInfo:
    name: str
    state: GroupState
    protocol_type: str = ""
    protocol: str = ""
    generation: int = 0
    members: Sequence[MemberInfo] = ()


class GroupMembership(Protocol):
    """Requests of group members."""

    async def join(self, name: str, request: JoinRequest) -> Joined:
        """Join the group; waits until all members have joined."""

    async def sync(self, name: str, request: SyncRequest) -> Synced:
        """Return the member's assignment; waits until the leader has sent the assignments."""

    async def heartbeat(
        self, name: str, member_id: str, generation: int, instance_id: str | None = None
    ) -> None: ...

    async def leave(self, name: str, members: Sequence[tuple[str, str | None]]) -> list[WeirError | None]:
        """Remove members, each as (id, instance id); return an error or None for each."""

    async def check_member(
        self, name: str, member_id: str, generation: int, instance_id: str | None = None
    ) -> Callable[[], None]:
        """Raise unless this member may commit offsets in a transaction; a transaction without a member always may.
        Return the same check as a function, for the moment of the commit."""


class GroupPositions(Protocol):
    """Committed offsets of groups."""

    async def commit(
        self,
        name: str,
        positions: Mapping[TopicName, CommittedOffset],
        *,
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
    ) -> dict[TopicName, WeirError | None]:
        """Commit offsets for a member, or for any client while the group has no members."""

    async def fetch(
        self, name: str, parts: Sequence[TopicName] | None = None, *, stable: bool = False
    ) -> dict[TopicName, CommittedOffset | WeirError]:
        """The committed offsets of the group, without a check of membership (`GroupOffsets.fetch`)."""

    async def delete_offsets(self, name: str, parts: Sequence[TopicName]) -> dict[TopicName, WeirError | None]:
        """Delete committed offsets. The caller checks that no member reads these partitions: assignments are
        opaque here."""

    async def kept(self, name: str) -> str:
        """The coordinator's name of the group, for a transaction that commits its offsets; NotAuthorisedError."""


class GroupAdmin(Protocol):
    """Requests of administrators."""

    async def all(self) -> list[GroupInfo]:
        """Every group that this broker coordinates."""

    async def describe(self, name: str) -> GroupInfo:
        """UnknownGroupError if it does not exist."""

    async def delete(self, name: str) -> None:
        """Delete the group with all of its offsets. GroupNotEmptyError while it has members, or while other
        clients use its offsets."""

    async def owner_here(self, name: str) -> bool:
        """Whether this broker coordinates the group."""

    async def owner(self, name: str) -> Owner:
        """The broker that coordinates the group."""


class Groups(GroupMembership, GroupPositions, GroupAdmin, Protocol):
    """The consumer groups of one role (`docs/adr/0023-whose-names.md`). Groups of other roles are invisible;
    NotAuthorisedError if another role owns the name of a new group, or if the role may not have groups."""


class RoleGroups(Protocol):
    """The coordinator of consumer groups; callers first select their role."""

    def of(self, role: str) -> Groups: ...
