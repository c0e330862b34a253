"""Consumer groups: what members ask and are answered, their positions, and what administrators see of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from weir.broker.api.broker import Owner
from weir.model.errors import WeirError
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset


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
    #: Whose member it is, and which topics it says that it reads, of those that this role may consume.
    role: str = ""
    topics: Sequence[TopicName] = ()
    #: Whether the role may make so many groups only.
    bounded: bool = False

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
    """What members of groups ask."""

    async def join(self, name: str, request: JoinRequest) -> Joined:
        """Waits until everyone has joined."""

    async def sync(self, name: str, request: SyncRequest) -> Synced:
        """Waits until the leader has brought everyone's share."""

    async def heartbeat(
        self, name: str, member_id: str, generation: int, instance_id: str | None = None
    ) -> None: ...

    async def leave(self, name: str, members: Sequence[tuple[str, str | None]]) -> list[WeirError | None]:
        """Members as (id, instance id); answers what went wrong with each."""

    async def check_member(
        self, name: str, member_id: str, generation: int, instance_id: str | None = None
    ) -> Callable[[], None]:
        """Raises unless positions may be committed in a transaction in this member's name; a transaction that
        names none may do so always. Answers with the same check, for the moment at which it is done."""


class GroupPositions(Protocol):
    """How far groups are."""

    async def commit(
        self,
        name: str,
        positions: Mapping[TopicName, CommittedOffset],
        *,
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
    ) -> dict[TopicName, WeirError | None]:
        """By a member, or by somebody else while there are no members."""

    async def fetch(
        self, name: str, parts: Sequence[TopicName] | None = None, *, stable: bool = False
    ) -> dict[TopicName, CommittedOffset | WeirError]:
        """Where the group is, whoever asks (`GroupOffsets.fetch`)."""

    async def delete_offsets(self, name: str, parts: Sequence[TopicName]) -> dict[TopicName, WeirError | None]:
        """Forget positions. Whether members read there is for the caller to know: it is opaque here."""

    async def kept(self, name: str) -> str:
        """What the coordinator calls the group, for a transaction that moves its positions; NotAuthorisedError."""


class GroupAdmin(Protocol):
    """What administrators ask."""

    async def all(self) -> list[GroupInfo]:
        """Every group that this broker coordinates."""

    async def describe(self, name: str) -> GroupInfo:
        """UnknownGroupError if there is none."""

    async def delete(self, name: str) -> None:
        """With all of its positions. GroupNotEmptyError while it has members, or others use its positions."""

    async def owner_here(self, name: str) -> bool:
        """Whether this broker is the one to ask for the group."""

    async def owner(self, name: str) -> Owner:
        """The broker to ask for the group."""


class Groups(GroupMembership, GroupPositions, GroupAdmin, Protocol):
    """Consumer groups as one role may use them (`docs/adr/0023-whose-names.md`). What is not its to know of is not
    there; NotAuthorisedError for who would make a group of a name that is taken, and for who has no groups."""


class RoleGroups(Protocol):
    """The coordinator of consumer groups: who asks comes first."""

    def of(self, role: str) -> Groups: ...
