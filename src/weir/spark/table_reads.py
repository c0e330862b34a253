"""`spark.read.format("weir")` over table and topic as one: what the table has comes by Spark's own Parquet reader.

A Python data source gives Spark rows, not plans. So where `weir.spark` is loaded, a batch read of this format is
made of two: the files of one snapshot of each topic's table, and from its offsets on the topics themselves.
Without it the source reads the same rows, by Python's tasks.
"""

import json
import logging
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from weir.client.kafka.cluster import Cluster, admin_url
from weir.client.schemas import topic_of
from weir.model.errors import ConfigError, LakeError, WeirError
from weir.spark.lake.catalog import namespace_lake
from weir.spark.options import EARLIEST, SourceOptions, flag, known, parse
from weir.spark.source.batch_reader import WeirSource
from weir.spark.source.planning import partitions_of
from weir.spark.source.reading import access_by
from weir.spark.tables.names import WeirCluster

log = logging.getLogger(__name__)

_NAME = "weir"
#: How long a broker may be away that is asked where a table lies.
_PATIENCE_S = 5.0


def joined(spark: SparkSession, given: Mapping[str, str]) -> DataFrame | None:
    """Tables and topics as one; None if there is no table, or the read says where it begins or ends."""
    try:
        named = known(given)
        if not flag("lake", named.get("lake", "true")):
            return None
        options = parse(given, streaming=False)
    except (ConfigError, ValueError):
        return None  # the source itself says what is wrong
    begins_early = options.start.word == EARLIEST
    if not begins_early or any(name.startswith("ending") for name in named):
        return None
    try:
        with Cluster(options.kafka) as cluster:
            return _found(spark, cluster, given, options)
    except LakeError:
        raise
    except WeirError as failure:  # it is no Weir, nobody answers there, there is no such topic: the source says so
        log.info("the lake is not read: %s", failure)
        return None


def _found(
    spark: SparkSession, cluster: Cluster, given: Mapping[str, str], options: SourceOptions
) -> DataFrame | None:
    from weir.spark.lake.spark_reader import find_history

    parts = partitions_of(cluster, options)
    url = options.admin_url or admin_url(cluster)
    access = access_by(url, options.kafka, _PATIENCE_S)
    place = WeirCluster(access, given.get("kafka.bootstrap.servers", ""))
    columns = None
    offsets: dict[str, dict[str, int]] = {}
    frames: list[DataFrame] = []
    partitions: dict[str, set[int]] = {}
    for part in parts:
        partitions.setdefault(part.topic, set()).add(part.index)
    for topic, asked in partitions.items():
        name = topic_of(topic)
        if namespace_lake(access, name.namespace).read(name) is None:
            continue
        columns = columns or WeirSource(dict(given)).schema()
        corrupt = options.registry.corrupt if options.registry is not None else None
        history = find_history(spark, place, cluster, name, columns, corrupt=corrupt)
        if history is None or history.frame is None:
            continue
        known_there = {str(part): end for part, end in history.offsets.items() if part in asked}
        if not known_there:
            continue
        offsets[topic] = known_there
        frame = history.frame
        if not asked >= set(history.offsets):  # only some partitions were asked for
            frame = frame.where(f"partition IN ({', '.join(map(str, sorted(asked)))})")
        frames.append(frame)
    if not frames or columns is None:
        return None
    rest_of = {**given, "seam": json.dumps(offsets)}
    rest = spark.read.schema(columns).format(_NAME).options(**rest_of).load()
    for frame in frames:
        rest = frame.select(*columns.names).unionByName(rest)
    return rest
