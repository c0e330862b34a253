"""Which topics the lake is on for, and where they end: asked for all at once, since there may be thousands."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weir.client.kafka.cluster import Cluster, Described
from weir.client.kafka.offsets import ends, ends_of_each
from weir.client.registry import kafka_name
from weir.model.errors import WeirError
from weir.model.replays import is_selection
from weir.model.topics import TopicName
from weir.spark.lake.definitions import Definition, topics_of, whole_lake
from weir.spark.sql.cluster import WeirCluster

#: Topics of one question to the brokers.
_AT_ONCE = 1000


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
