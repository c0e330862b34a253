"""What waits for a stream that does not run: by its checkpoint, and by where its topics end."""

import json
from pathlib import Path
from typing import Any

from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.offsets import ends, starts
from weir.model.sql_streams import SqlStream
from weir.spark.source.options import connection
from weir.spark.sql.cluster import WeirCluster, kafka_name


def last_batch(checkpoint: Path) -> int:
    """The last micro-batch that Spark has finished there; -1 if none."""
    folder = checkpoint / "commits"
    done = [int(file.name) for file in folder.iterdir() if file.name.isdigit()] if folder.is_dir() else []
    return max(done, default=-1)


def waiting(place: WeirCluster, stream: SqlStream, checkpoint: Path) -> int:
    """Messages that it has yet to read."""
    batch = last_batch(checkpoint)
    read = _read_up_to(checkpoint / "offsets" / str(batch)) if batch >= 0 else []
    names = list(dict.fromkeys(kafka_name(source) for source in stream.sources))
    with Cluster(connection(place.options)) as cluster:
        partitions = cluster.partitions(names)
        latest = ends(cluster, partitions, committed=True)
        if not read:
            new = stream.options.get("start") == "latest"
            read = [latest if new else starts(cluster, partitions)]
    return sum(
        max(0, end - source.get(partition, 0))
        for source in read
        for partition, end in latest.items()
        if _reads(source, partition.topic)
    )


def _reads(source: dict[Partition, int], topic: str) -> bool:
    return any(partition.topic == topic for partition in source)


def _read_up_to(file: Path) -> list[dict[Partition, int]]:
    """Where a micro-batch ended in each of its sources: lines of JSON, among others."""
    found = [_offsets(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [one for one in found if one]


def _offsets(line: str) -> dict[Partition, int]:
    try:
        told: Any = json.loads(line)
        return {
            Partition(topic, int(part)): int(offset)
            for topic, parts in told.items()
            for part, offset in parts.items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}
