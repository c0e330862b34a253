"""What the lake has not exported yet stays in its topic: a subscription from the moment on that the lake is on."""

from contextlib import suppress

from weir.client.admin import topic_path
from weir.client.blocking import ask_v2
from weir.client.kafka import positions
from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.offsets import starts
from weir.client.registry import topic_of
from weir.model.errors import TopicNotFoundError
from weir.model.replays import is_selection
from weir.model.topics import NamespaceName, TopicName
from weir.spark.lake.definitions import namespace_lake
from weir.spark.source.options import connection
from weir.spark.source.progress import Progress
from weir.spark.sql.cluster import WeirCluster, kafka_name

#: The subscription whose position says what is in the lake.
SUBSCRIPTION = "lake"


def check_there(place: WeirCluster, topic: TopicName) -> None:
    """TopicNotFoundError if it is not."""
    with Cluster(connection(place.options)) as cluster:
        cluster.partitions([kafka_name(topic)])


def hold(place: WeirCluster, namespace: NamespaceName, topic: TopicName | None) -> int:
    """Of how many topics everything stays until it is exported: of one, or of those of the namespace that the lake
    is on for. TopicNotFoundError if it is not there."""
    lake = None if topic is not None else namespace_lake(place.access, namespace)
    with Cluster(connection(place.options)) as cluster:
        names = [name for name in _topics(cluster, namespace, topic) if lake is None or lake.of(name) is not None]
        for name in names:
            parts = cluster.partitions([kafka_name(name)])
            placed = positions.committed(cluster, SUBSCRIPTION, parts)
            keep(cluster, starts(cluster, [part for part in parts if part not in placed]))
    return len(names)


def keep(cluster: Cluster, offsets: dict[Partition, int]) -> None:
    """What lies before these offsets is in the lake; the rest stays."""
    positions.commit(cluster, SUBSCRIPTION, offsets, Progress().metadata(retain=True))


def let_go(place: WeirCluster, namespace: NamespaceName, topic: TopicName | None) -> None:
    """The lake holds nothing back any more of a topic, or of all topics of the namespace, unless it is on for them
    still."""
    lake = namespace_lake(place.access, namespace)
    with Cluster(connection(place.options)) as cluster:
        for name in _topics(cluster, namespace, topic):
            if lake.of(name) is not None:
                continue
            with suppress(TopicNotFoundError):
                if positions.committed(cluster, SUBSCRIPTION, cluster.partitions([kafka_name(name)])):
                    ask_v2(place.access, "DELETE", topic_path(name, "subscription", SUBSCRIPTION))


def _topics(cluster: Cluster, namespace: NamespaceName, topic: TopicName | None) -> list[TopicName]:
    """This one, or all of the namespace."""
    if topic is not None:
        return [topic]
    return [
        name for name in map(topic_of, cluster.topics()) if name.namespace == namespace and not is_selection(name)
    ]
