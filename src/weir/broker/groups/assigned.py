"""Which members of consumer groups have which partitions: told by groups, asked by stats and by upkeep.

Members of a group fetch by themselves, so a topic never sees them as consumers; it asks here.
"""

from collections.abc import Mapping, Sequence

from weir.broker.api import ConsumerStats
from weir.model.owned_names import plain_name
from weir.model.topics import TopicName

#: A member as stats show it, and the partitions that it was given.
Share = tuple[ConsumerStats, Sequence[TopicName]]


class GroupMembers:
    """One for all topics of a broker."""

    def __init__(self) -> None:
        self._by_part: dict[TopicName, dict[str, tuple[ConsumerStats, ...]]] = {}
        self._parts: dict[str, dict[TopicName, None]] = {}

    def of(self, part: TopicName, group: str) -> tuple[ConsumerStats, ...]:
        """The members of the group that have this partition now; `group`: its plain name."""
        return self.on(part).get(group, ())

    def on(self, part: TopicName) -> Mapping[str, tuple[ConsumerStats, ...]]:
        """Every group that has given this partition to somebody, by its plain name, and to whom: groups of several
        tenants that have one name share its subscription."""
        found: dict[str, tuple[ConsumerStats, ...]] = {}
        for group, members in self._by_part.get(part, {}).items():
            name = plain_name(group)
            found[name] = (*found.get(name, ()), *members)
        return found

    def set(self, group: str, shares: Sequence[Share]) -> None:
        """From now on the group's work is divided like this, and in no other way."""
        for part in self._parts.pop(group, {}):
            groups = self._by_part[part]
            del groups[group]
            if not groups:
                del self._by_part[part]
        divided = _by_part(shares)
        for part, members in divided.items():
            self._by_part.setdefault(part, {})[group] = tuple(members)
        if divided:
            self._parts[group] = dict.fromkeys(divided)


def _by_part(shares: Sequence[Share]) -> Mapping[TopicName, list[ConsumerStats]]:
    divided: dict[TopicName, list[ConsumerStats]] = {}
    for member, parts in shares:
        for part in dict.fromkeys(parts):
            divided.setdefault(part, []).append(member)
    return divided
