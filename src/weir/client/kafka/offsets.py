"""Where partitions begin and end, and which offset a moment has."""

from collections.abc import Iterable, Mapping, Sequence

from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.refusals import check, error_of
from weir.model.errors import WeirError
from weir.wire.kafka import messages as m

#: In place of a moment.
LATEST, EARLIEST = -1, -2
#: In place of an offset: there is no message that late.
NONE = -1


def list_offsets(
    cluster: Cluster, wanted: Mapping[Partition, int], *, committed: bool = True
) -> dict[Partition, int]:
    """For each partition the first offset whose message is not older than the moment (in ms), or NONE.

    With `committed`, LATEST is where the first open transaction begins, if one is open.
    """
    return cluster.retry(lambda: _list_offsets(cluster, [(wanted, committed)]))[0] if wanted else {}


def ends(cluster: Cluster, partitions: Iterable[Partition], *, committed: bool = True) -> dict[Partition, int]:
    """The offsets after the last messages."""
    return list_offsets(cluster, dict.fromkeys(partitions, LATEST), committed=committed)


def ends_of_each(cluster: Cluster, partitions: Sequence[Partition]) -> "dict[Partition, int | WeirError]":
    """The offset after the last message of each that is no part of an open transaction, or what is wrong with it:
    none of many is in the way of the others."""

    def ask() -> dict[Partition, int | WeirError]:
        found: dict[Partition, int | WeirError] = {}
        wanted = dict.fromkeys(partitions, LATEST)
        asked = []
        for address, some in cluster.by_leader(wanted).items():
            asked.append(cluster.connection(address))
            asked[-1].send(_request(some, wanted, 1))
        for connection in asked:
            for topic in connection.receive(m.ListOffsetsResponse).topics:
                for part in topic.partitions:
                    one = Partition(topic.name, part.partition_index)
                    found[one] = error_of(part.error_code, str(one)) if part.error_code else part.offset
        return found

    return cluster.retry(ask) if partitions else {}


def starts(cluster: Cluster, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """The offsets of the oldest messages that are still there."""
    return list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))


def bounds(
    cluster: Cluster, partitions: Iterable[Partition], *, committed: bool = True
) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """Where partitions begin and where they end, asked at once."""
    wanted = list(partitions)
    if not wanted:
        return {}, {}
    questions = [(dict.fromkeys(wanted, EARLIEST), True), (dict.fromkeys(wanted, LATEST), committed)]
    begin, end = cluster.retry(lambda: _list_offsets(cluster, questions))
    return begin, end


def _list_offsets(
    cluster: Cluster, questions: Sequence[tuple[Mapping[Partition, int], bool]]
) -> list[dict[Partition, int]]:
    """Every question goes out before the first answer is taken."""
    found: list[dict[Partition, int]] = [{} for _ in questions]
    asked = []
    for (wanted, committed), answer in zip(questions, found, strict=True):
        for address, partitions in cluster.by_leader(wanted).items():
            connection = cluster.connection(address)
            connection.send(_request(partitions, wanted, 1 if committed else 0))
            asked.append((connection, answer))
    for connection, answer in asked:
        for topic in connection.receive(m.ListOffsetsResponse).topics:
            for part in topic.partitions:
                partition = Partition(topic.name, part.partition_index)
                check(part.error_code, str(partition))
                answer[partition] = part.offset
    return found


def _request(partitions: list[Partition], wanted: Mapping[Partition, int], isolation: int) -> m.ListOffsetsRequest:
    topics: dict[str, list[m.ListOffsetsRequest.ListOffsetsPartition]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(
            m.ListOffsetsRequest.ListOffsetsPartition(
                partition_index=partition.index, current_leader_epoch=-1, timestamp=wanted[partition]
            )
        )
    return m.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[
            m.ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=parts) for name, parts in topics.items()
        ],
    )
