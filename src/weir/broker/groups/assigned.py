"""Which members of consumer groups have which partitions: told by groups, asked by stats and by upkeep.

Members of a group fetch by themselves, so a topic never sees them as consumers; it asks here.
"""

from collections.abc import Iterable, Mapping, Sequence

from weir.broker.api import ConsumerStats
from weir.model.owned_names import plain_name
from weir.model.topics import TopicName

#: A member as stats show it, and the partitions that it was given.
Share = tuple[ConsumerStats, Sequence[TopicName]]


class GroupMembers:
    """One for all topics of a broker."""

    def __init__(self) -> None:
        #: Members by their ids, by the group, by the partition that they have.
        self._by_part: dict[TopicName, dict[str, dict[str, ConsumerStats]]] = {}
        self._parts: dict[str, dict[str, Sequence[TopicName]]] = {}

    def of(self, part: TopicName, group: str) -> tuple[ConsumerStats, ...]:
        """The members of the group that have this partition now; `group`: its plain name."""
        return self.on(part).get(group, ())

    def on(self, part: TopicName) -> Mapping[str, tuple[ConsumerStats, ...]]:
        """Every group that has given this partition to somebody, by its plain name, and to whom: groups of several
        tenants that have one name share its subscription."""
        found: dict[str, tuple[ConsumerStats, ...]] = {}
        for group, members in self._by_part.get(part, {}).items():
            name = plain_name(group)
            found[name] = (*found.get(name, ()), *members.values())
        return found

    def set(self, group: str, shares: Iterable[Share]) -> None:
        """From now on the group's work is divided like this, and in no other way."""
        self.change(group, list(self._parts.get(group, ())), shares)

    def change(self, group: str, gone: Iterable[str], came: Iterable[Share]) -> None:
        """Members of the group are gone (by their ids), and these have come; the others have what they had."""
        for member_id in gone:
            self._remove(group, member_id)
        for member, parts in came:
            if not parts:
                continue
            self._parts.setdefault(group, {})[member.name] = parts
            for part in parts:
                self._by_part.setdefault(part, {}).setdefault(group, {})[member.name] = member

    def _remove(self, group: str, member_id: str) -> None:
        members = self._parts.get(group, {})
        for part in dict.fromkeys(members.pop(member_id, ())):
            groups = self._by_part[part]
            del groups[group][member_id]
            if not groups[group]:
                del groups[group]
            if not groups:
                del self._by_part[part]
        if not members:
            self._parts.pop(group, None)
