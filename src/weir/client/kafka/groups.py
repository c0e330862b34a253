"""How far a group has come, kept by the brokers: in Weir, the position of a subscription.

Brokers keep positions by the names of topics. A client that commits with `of_topic` says which topic of the name
it has read, so a position that reaches a topic that was created again meanwhile is recognized by `is_of`.
"""

from collections.abc import Iterable, Mapping

from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.connection import check
from weir.wire.kafka import messages as m

_TOPIC_ID = "topic-id="


def of_topic(topic_id: str) -> str:
    """Metadata for positions in the topic with this id."""
    return f"{_TOPIC_ID}{topic_id}" if topic_id else ""


def is_of(metadata: str, topic_id: str) -> bool:
    """Whether a position is of the topic with this id. Positions without an id are of any topic."""
    return not metadata.startswith(_TOPIC_ID) or not topic_id or metadata == of_topic(topic_id)


def commit(
    cluster: Cluster,
    group: str,
    positions: Mapping[Partition, int],
    metadata: str | Mapping[str, str] = "",
    *,
    ids: Mapping[str, str] | None = None,
) -> None:
    """Set the offsets of the next messages that the group wants. It must have no members. `metadata`: of all
    positions, or by topic. `ids`: which topics the positions are of, in place of `metadata`."""
    said = metadata if ids is None else {topic: of_topic(topic_id) for topic, topic_id in ids.items()}
    topics: dict[str, list[m.OffsetCommitRequest.OffsetCommitRequestPartition]] = {}
    for partition, offset in positions.items():
        topics.setdefault(partition.topic, []).append(
            m.OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=partition.index,
                committed_offset=offset,
                committed_leader_epoch=-1,
                committed_metadata=said if isinstance(said, str) else said.get(partition.topic, ""),
            )
        )
    request = m.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[
            m.OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=parts)
            for name, parts in topics.items()
        ],
    )

    def ask() -> None:
        for topic in cluster.group_coordinator(group).ask(request, m.OffsetCommitResponse).topics:
            for part in topic.partitions:
                check(part.error_code, f"{group} on {topic.name}-{part.partition_index}")

    if positions:
        cluster.retry(ask)


def committed(
    cluster: Cluster, group: str, partitions: Iterable[Partition], *, stable: bool = False
) -> dict[Partition, int]:
    """The positions of a group, of the partitions that it has one for. `stable`: not before transactions that move
    them are decided."""
    found = described(cluster, group, partitions, stable=stable)
    return {partition: offset for partition, (offset, _) in found.items()}


def described(
    cluster: Cluster, group: str, partitions: Iterable[Partition], *, stable: bool = False
) -> dict[Partition, tuple[int, str]]:
    """The positions of a group, and the metadata that it gave with them."""
    topics: dict[str, list[int]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition.index)
    request = m.OffsetFetchRequest(
        group_id=group,
        require_stable=stable,
        topics=[
            m.OffsetFetchRequest.OffsetFetchRequestTopic(name=name, partition_indexes=parts)
            for name, parts in topics.items()
        ],
    )

    def ask() -> dict[Partition, tuple[int, str]]:
        found: dict[Partition, tuple[int, str]] = {}
        answer = cluster.group_coordinator(group).ask(request, m.OffsetFetchResponse)
        check(answer.error_code, group)
        for topic in answer.topics:
            for part in topic.partitions:
                check(part.error_code, f"{group} on {topic.name}-{part.partition_index}")
                if part.committed_offset >= 0:
                    place = Partition(topic.name, part.partition_index)
                    found[place] = part.committed_offset, part.metadata or ""
        return found

    return cluster.retry(ask) if topics else {}


def groups(cluster: Cluster, prefix: str) -> list[str]:
    """Groups with this prefix that the client may know of, of all brokers."""

    def ask() -> list[str]:
        found: set[str] = set()
        for connection in cluster.everyone():
            answer = connection.ask(m.ListGroupsRequest(), m.ListGroupsResponse)
            check(answer.error_code, "groups")
            found.update(one.group_id for one in answer.groups if one.group_id.startswith(prefix))
        return sorted(found)

    return cluster.retry(ask)
