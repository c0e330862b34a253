"""What the lake has not exported yet stays in its topic: a subscription from the moment on that the lake is on.

Which topics the lake is on for, and where they end: asked for all at once, since there may be thousands.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from weir.client.admin import ask_v2, topic_path
from weir.client.kafka import groups
from weir.client.kafka.cluster import Cluster, Described, Partition
from weir.client.kafka.fetch import ends, ends_of_each, starts
from weir.client.schemas import kafka_name
from weir.model.definitions import is_selection
from weir.model.errors import TopicNotFoundError, WeirError
from weir.model.topics import NamespaceName, TopicName
from weir.spark.lake.catalog import Definition, namespace_lake, topics_of, whole_lake
from weir.spark.options import connection, recreated
from weir.spark.source.query_subscription import Progress, Said
from weir.spark.tables.names import WeirCluster

#: The subscription whose position says what is in the lake.
SUBSCRIPTION = "lake"
#: Topics of one question to the brokers.
_AT_ONCE = 1000


def check_there(place: WeirCluster, topic: TopicName) -> None:
    """TopicNotFoundError if it is not."""
    with Cluster(connection(place.options)) as cluster:
        cluster.partitions([kafka_name(topic)])


def hold(place: WeirCluster, namespace: NamespaceName, topic: TopicName | None) -> int:
    """Of how many topics everything stays until it is exported: of one, or of those of the namespace that the lake
    is on for. TopicNotFoundError if it is not there."""
    lake = None if topic is not None else namespace_lake(place.access, namespace)
    names = [name for name in _topics(place, namespace, topic) if lake is None or lake.of(name) is not None]
    with Cluster(connection(place.options)) as cluster:
        if topic is None:
            return hold_all(cluster, names)
        hold_one(cluster, topic)
        return 1


def skipped_topics(place: WeirCluster, namespace: NamespaceName) -> list[str]:
    """The internal topics that the lake of the namespace leaves out, by their local names."""
    lake = namespace_lake(place.access, namespace)
    return sorted(name.local for name in _topics(place, namespace, None) if lake.is_skipped(name))


def hold_one(cluster: Cluster, topic: TopicName) -> None:
    """TopicNotFoundError if it is not there."""
    name = kafka_name(topic)
    parts = cluster.partitions([name])
    _hold(cluster, parts, {name: cluster.topic_ids.get(name, "")})


def hold_all(cluster: Cluster, topics: Sequence[TopicName]) -> int:
    """Of how many topics everything stays, a thousand of them at once; not of those that are deleted meanwhile."""
    held = 0
    for at in range(0, len(topics), _AT_ONCE):
        told = cluster.describe([kafka_name(name) for name in topics[at : at + _AT_ONCE]])
        there = {name: one for name, one in told.items() if isinstance(one, Described)}
        parts = [part for one in there.values() for part in one.partitions]
        _hold(cluster, parts, {name: one.topic_id for name, one in there.items()})
        held += len(there)
    return held


def _hold(cluster: Cluster, parts: Sequence[Partition], ids: Mapping[str, str]) -> None:
    """From their starts on, unless they have positions. Those of deleted topics of the same names do not count."""
    told = groups.described(cluster, SUBSCRIPTION, parts)
    placed = {
        part
        for part, (_, said) in told.items()
        if not recreated({part.topic: Said.parse(said).topic_id}, {part.topic: ids.get(part.topic, "")})
    }
    keep(cluster, starts(cluster, [part for part in parts if part not in placed]), ids)


def keep(cluster: Cluster, offsets: dict[Partition, int], ids: Mapping[str, str]) -> None:
    """What lies before these offsets is in the lake; the rest stays. `ids`: which topics the offsets are of."""
    said = {topic: Progress().metadata(retain=True, topic_id=topic_id) for topic, topic_id in ids.items()}
    groups.commit(cluster, SUBSCRIPTION, offsets, said)


def let_go_internal(place: WeirCluster) -> None:
    """The lake holds nothing back of internal topics, which earlier releases exported with their namespaces."""
    for namespace, lake in whole_lake(place.access).items():
        if lake.every is not None:
            let_go(place, namespace, None)


def let_go(place: WeirCluster, namespace: NamespaceName, topic: TopicName | None) -> None:
    """The lake holds nothing back any more of a topic, or of all topics of the namespace, unless it is on for them
    still."""
    lake = namespace_lake(place.access, namespace)
    # A definition that is ignored lets go of nothing: it may count again once a superuser has defined its catalog.
    off = (one for one in _topics(place, namespace, topic) if lake.of(one) is None and lake.problem(one) is None)
    names = {kafka_name(name): name for name in off}
    with Cluster(connection(place.options)) as cluster:
        told = cluster.describe(list(names))
        parts = [part for one in told.values() if isinstance(one, Described) for part in one.partitions]
        held = {part.topic for part in groups.committed(cluster, SUBSCRIPTION, parts)}
    for name in sorted(held):
        with suppress(TopicNotFoundError):
            ask_v2(place.access, "DELETE", topic_path(names[name], "subscription", SUBSCRIPTION))
    for one in told.values():
        if isinstance(one, WeirError) and not isinstance(one, TopicNotFoundError):
            raise one  # whoever lets go does so again: of this one everything would stay for ever


def _topics(place: WeirCluster, namespace: NamespaceName, topic: TopicName | None) -> list[TopicName]:
    """This one, or all of the namespace."""
    if topic is not None:
        return [topic]
    return [name for name in topics_of(place.access, [namespace]) if not is_selection(name)]


@dataclass(frozen=True, slots=True)
class LakeTopic:
    """A topic that is in the lake, or is to be."""

    name: TopicName
    definition: Definition


@dataclass(frozen=True, slots=True)
class TopicEnds:
    """Which topic of its name it is, and by partition the offset after the last message that can be exported."""

    topic_id: str
    ends: Mapping[int, int]

    @property
    def key(self) -> tuple[str, int]:
        """Another one: the topic was made again, or has more partitions."""
        return self.topic_id, len(self.ends)


def lake_topics(place: WeirCluster) -> list[LakeTopic]:
    """Every topic that the lake is on for."""
    lakes = whole_lake(place.access)
    found = []
    for name in topics_of(place.access, list(lakes)):
        definition = None if is_selection(name) else lakes[name.namespace].of(name)
        if definition is not None:
            found.append(LakeTopic(name, definition))
    return sorted(found, key=lambda one: str(one.name))


def look(cluster: Cluster, topics: Sequence[TopicName]) -> dict[TopicName, TopicEnds | WeirError]:
    """Where each ends; or what is wrong with it, TopicNotFoundError if it is gone."""
    found: dict[TopicName, TopicEnds | WeirError] = {}
    for at in range(0, len(topics), _AT_ONCE):
        found |= _look(cluster, {kafka_name(topic): topic for topic in topics[at : at + _AT_ONCE]})
    return found


def look_at(cluster: Cluster, topic: TopicName) -> TopicEnds:
    """The same of one; a leader that is away is waited for."""
    name = kafka_name(topic)
    found = ends(cluster, cluster.partitions([name]))
    return TopicEnds(cluster.topic_id(name), {part.index: end for part, end in found.items()})


def _look(cluster: Cluster, topics: Mapping[str, TopicName]) -> dict[TopicName, TopicEnds | WeirError]:
    told = cluster.describe(list(topics))
    there = {name: one for name, one in told.items() if isinstance(one, Described)}
    told_ends = ends_of_each(cluster, [part for one in there.values() for part in one.partitions])
    found: dict[TopicName, TopicEnds | WeirError] = {
        topics[name]: one for name, one in told.items() if isinstance(one, WeirError)
    }
    for name, one in there.items():
        own = {part.index: told_ends[part] for part in one.partitions if part in told_ends}
        found[topics[name]] = _wrong(own.values()) or TopicEnds(
            one.topic_id, {index: end for index, end in own.items() if isinstance(end, int)}
        )
    return found


def _wrong(ends: Iterable[int | WeirError]) -> WeirError | None:
    return next((end for end in ends if isinstance(end, WeirError)), None)
