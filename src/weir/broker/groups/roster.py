"""Who is in a consumer group: members by id and by instance, ids that were given to those who will come, and
counts of what the members know, say and read. Nothing here that concerns one member depends on the number of the
others."""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeVar

from weir.broker.api import JoinRequest
from weir.broker.groups.member import Member
from weir.broker.upkeep.alarm import Deadlines
from weir.model.errors import MemberFencedError, UnknownMemberError
from weir.model.topics import TopicName

T = TypeVar("T")


class Roster:
    """In the order in which they came. The leader is a member, if there are any."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._by_id: dict[str, Member] = {}
        self._order: OrderedDict[Member, None] = OrderedDict()
        self._instances: dict[str, str] = {}
        self.leader = ""
        #: Ids that new members were given to come again with, and until when they may.
        self.given: Deadlines[str] = Deadlines()
        #: When members are given up. Those that the group keeps waiting may be missing.
        self.deadlines: Deadlines[Member] = Deadlines()
        #: What all members said of themselves, in bytes.
        self.said_bytes = 0
        #: How many members know each protocol, and have each role.
        self._knowing: Counter[str] = Counter()
        self._roles: Counter[str] = Counter()
        #: How many members have each topic, or say that they read it.
        self._read: Counter[TopicName] = Counter()

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._order))

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def get(self, member_id: str) -> Member | None:
        return self._by_id.get(member_id)

    def static(self, instance_id: str | None) -> Member | None:
        """The static member of this name."""
        return None if instance_id is None else self._by_id.get(self._instances.get(instance_id, ""))

    def find(self, member_id: str, instance_id: str | None) -> Member:
        """UnknownMemberError; MemberFencedError if the instance is another member by now."""
        if instance_id is not None:
            current = self._instances.get(instance_id)
            if current is None:
                raise UnknownMemberError(f"group {self._group!r} has no static member {instance_id[:80]!r}")
            if current != member_id:
                raise MemberFencedError(f"the static member {instance_id[:80]!r} is another one now")
        member = self._by_id.get(member_id)
        if member is None:
            raise UnknownMemberError(f"group {self._group!r} has no member {member_id[:80]!r}")
        return member

    # --- what all of them have in common -------------------------------------------------------------------

    @property
    def roles(self) -> frozenset[str]:
        return frozenset(self._roles)

    @property
    def topics(self) -> Collection[TopicName]:
        """Topics of which members were given partitions, or say that they read them."""
        return self._read.keys()

    def all_know(self, protocol: str) -> bool:
        return self._knowing[protocol] == len(self._by_id)

    def common(self) -> list[str]:
        """Protocols that every member knows, in the order of the first."""
        first = next(iter(self._order), None)
        return [] if first is None else [name for name in first.protocols if self.all_know(name)]

    # --- changes -------------------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        self._by_id[member.id] = member
        self._order[member] = None
        self._count(member)
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.id
        self.leader = self.leader or member.id

    def update(self, member: Member, request: JoinRequest) -> None:
        """The member says something else of itself."""
        self._discount(member)
        member.update(request)
        self._count(member)

    def show(self, member: Member, parts: Iterable[TopicName], topics: Iterable[TopicName]) -> None:
        """The member has these partitions, and says that it reads these topics."""
        self._discount(member)
        member.parts, member.topics = tuple(parts), tuple(topics)
        self._count(member)

    def rename(self, member: Member, member_id: str) -> None:
        """A static member goes on under another id, in its old place."""
        if member.id == self.leader:
            self.leader = member_id
        del self._by_id[member.id]
        member.id = member_id
        self._by_id[member_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member_id

    def remove(self, member: Member) -> None:
        del self._by_id[member.id]
        del self._order[member]
        self._discount(member)
        self.deadlines.remove(member)
        if member.instance_id is not None and self._instances.get(member.instance_id) == member.id:
            del self._instances[member.instance_id]
        if member.id == self.leader:
            first = next(iter(self._order), None)
            self.leader = "" if first is None else first.id

    def clear(self, members: Sequence[Member] = (), leader: str = "") -> None:
        """These are in, and nobody else."""
        self._by_id = {member.id: member for member in members}
        self._order = OrderedDict.fromkeys(members)
        self._instances = {m.instance_id: m.id for m in members if m.instance_id is not None}
        self.leader = leader
        self.given.clear()
        self.deadlines.clear()
        self.said_bytes = 0
        for counted in (self._knowing, self._roles, self._read):
            counted.clear()
        for member in members:
            self._count(member)

    # --- counting ------------------------------------------------------------------------------------------

    def _count(self, member: Member) -> None:
        self.said_bytes += member.size
        self._knowing.update(member.protocols.keys())
        self._roles[member.role] += 1
        member.read = _bases((*member.parts, *member.topics))
        self._read.update(member.read)

    def _discount(self, member: Member) -> None:
        self.said_bytes -= member.size
        _subtract(self._knowing, member.protocols)
        _subtract(self._roles, (member.role,))
        _subtract(self._read, member.read)


def _subtract(counts: Counter[T], keys: Iterable[T]) -> None:
    """Keys that nobody has any more are forgotten."""
    for key in keys:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]


def _bases(parts: Iterable[TopicName]) -> tuple[TopicName, ...]:
    """The topics that these are partitions of; partitions of one topic usually follow each other."""
    found: dict[TopicName, None] = {}
    last: tuple[object, ...] = ()
    for part in parts:
        topic = (part.local, part.namespace, part.domain)
        if topic != last:
            found[part.base] = None
            last = topic
    return tuple(found)
