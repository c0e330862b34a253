"""Who is in a consumer group: members by id and by instance, and ids that were given to those who will come."""

from collections.abc import Iterator, Sequence

from weir.broker.groups.member import Member
from weir.model.errors import MemberFencedError, UnknownMemberError


class Roster:
    """In the order in which they came. The leader is a member, if there are any."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._by_id: dict[str, Member] = {}
        self._instances: dict[str, str] = {}
        self.leader = ""
        #: Ids that new members were given to come again with, and until when they may.
        self.given: dict[str, float] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._by_id.values()))

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

    def add(self, member: Member) -> None:
        self._by_id[member.id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.id
        self.leader = self.leader or member.id

    def rename(self, member: Member, member_id: str) -> None:
        """A static member goes on under another id, in its old place."""
        if member.id == self.leader:
            self.leader = member_id
        member.id = member_id
        self._by_id = {one.id: one for one in self._by_id.values()}
        if member.instance_id is not None:
            self._instances[member.instance_id] = member_id

    def remove(self, member: Member) -> None:
        del self._by_id[member.id]
        if member.instance_id is not None and self._instances.get(member.instance_id) == member.id:
            del self._instances[member.instance_id]
        if member.id == self.leader:
            self.leader = next(iter(self._by_id), "")
        member.end(UnknownMemberError(f"{member.id} is no longer in group {self._group!r}"))

    def clear(self, members: Sequence[Member] = (), leader: str = "") -> None:
        """These are in, and nobody else."""
        self._by_id = {member.id: member for member in members}
        self._instances = {m.instance_id: m.id for m in members if m.instance_id is not None}
        self.leader = leader
        self.given = {}
