"""What waits for a stream, running or not: by its checkpoint, and by where its topics end."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.offsets import ends, starts
from weir.client.registry import kafka_name
from weir.model.sql_streams import SqlStream
from weir.model.topics import TopicName
from weir.spark.source.option_values import from_json, ids_of, recreated
from weir.spark.source.options import connection
from weir.spark.sql.cluster import WeirCluster


def last_batch(checkpoint: Path) -> int:
    """The last micro-batch that Spark has finished there; -1 if none."""
    folder = checkpoint / "commits"
    done = [int(file.name) for file in folder.iterdir() if file.name.isdigit()] if folder.is_dir() else []
    return max(done, default=-1)


def waiting(place: WeirCluster, stream: SqlStream, checkpoint: Path) -> int:
    """Messages that it has not processed yet."""
    return unread(place, stream.sources, checkpoint, latest_first=stream.options.get("start") == "latest")


def unread(place: WeirCluster, topics: Sequence[TopicName], checkpoint: Path, *, latest_first: bool) -> int:
    """Messages of these topics that the query of this checkpoint has not processed yet. `latest_first`: a new one
    begins where the topics end."""
    batch = last_batch(checkpoint)
    read = _read_up_to(checkpoint / "offsets" / str(batch)) if batch >= 0 else []
    names = list(dict.fromkeys(kafka_name(topic) for topic in topics))
    with Cluster(connection(place.options)) as cluster:
        partitions = cluster.partitions(names)
        latest = ends(cluster, partitions, committed=True)
        oldest = starts(cluster, partitions)
        ids = cluster.topic_ids
    if not read and latest_first:
        return 0
    return behind([_of_topics(source, ids) for source in read], oldest, latest)


def behind(
    read: Sequence[Mapping[Partition, int]], oldest: Mapping[Partition, int], latest: Mapping[Partition, int]
) -> int:
    """Messages between where the sources of a query have read up to, and where the partitions end. A topic that
    is read twice waits once, for whoever is slower. A partition that was never read waits from its oldest message
    on; what was trimmed does not wait any more."""
    found = 0
    for partition, end in latest.items():
        places = [source[partition] for source in read if partition in source]
        found += max(0, end - max(min(places, default=0), oldest.get(partition, 0)))
    return found


def _of_topics(source: Mapping[str, Mapping[str, Any]], ids: Mapping[str, str]) -> dict[Partition, int]:
    """The offsets of a source, without those in topics that were created again: nothing of these was read."""
    gone = recreated(ids_of(source), ids)
    return {partition: offset for partition, offset in from_json(source).items() if partition.topic not in gone}


def _read_up_to(file: Path) -> list[dict[str, dict[str, Any]]]:
    """Where a micro-batch ended in each of its sources, as `to_json` writes it: lines of JSON, among others."""
    found = [_offsets(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [one for one in found if one]


def _offsets(line: str) -> dict[str, dict[str, Any]]:
    """Empty if the line has no offsets."""
    try:
        told: dict[str, dict[str, Any]] = json.loads(line)
        return told if from_json(told) and all(type(at) is int for at in from_json(told).values()) else {}
    except (ValueError, TypeError, AttributeError):
        return {}
