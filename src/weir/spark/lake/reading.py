"""A topic's history as Spark reads it from the table, and where the topic itself goes on: each offset on one side.

The seam is what one snapshot of the table says: rows before it come from that snapshot's files, by Spark's own
Parquet reader, the others from the brokers. Exports, trims and producers that come later move nothing.
"""

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from weir.model.errors import LakeError, NotAuthenticatedError, NotAuthorisedError
from weir.model.topics import TopicName
from weir.spark.lake.definitions import namespace_lake
from weir.spark.sql.cluster import WeirCluster, kafka_name

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema

    from weir.spark.lake.tables import LakeTable

log = logging.getLogger(__name__)

#: By which Spark's reader finds a column, whatever it was called when the file was written.
_FIELD_ID = "parquet.field.id"
_EARLIEST = -2


@dataclass(frozen=True, slots=True)
class History:
    """`frame`: the rows that are in the table; None if there are none. `offsets`: where the topic goes on."""

    frame: DataFrame | None
    offsets: dict[int, int]

    def starting_offsets(self, topic: TopicName, partitions: int) -> str:
        """For the source that reads the rest."""
        places = {str(one): self.offsets.get(one, _EARLIEST) for one in range(partitions)}
        return json.dumps({kafka_name(topic): places})


def find_history(
    spark: SparkSession, place: WeirCluster, topic: TopicName, columns: t.StructType, *, corrupt: str | None
) -> History | None:
    """None if the topic has no table that Spark can read. `columns`: those of the source that reads the rest;
    `corrupt`: which of them has the bytes of values that do not fit; None: there must be no such values."""
    try:
        definition = namespace_lake(place.access, topic.namespace).of(topic)
    except (
        NotAuthorisedError,
        NotAuthenticatedError,
    ):  # to look at a namespace's properties one must administer it
        return None
    if definition is None:
        return None
    from weir.spark.lake.tables import find_table, is_own

    table = find_table(topic, definition)
    if table is None or not is_own(table, definition):
        return None
    if not table.location.startswith("file:"):
        log.warning("the history of %s is in %s, which this Spark does not read", topic, table.location)
        return None
    files = [task.file for task in table.table.scan().plan_files()]
    offsets = table.offsets()
    if not files:
        return History(None, offsets)
    _check(table, columns, files, corrupt)
    schema = table.table.schema()
    named = {"corrupt" if name == corrupt else name: name for name in columns.names if name != "topic"}
    wanted = t.StructType(
        [
            _with_id(t.StructField(stored, columns[name].dataType), schema, stored)
            for stored, name in named.items()
            if _id(schema, stored) is not None
        ]
    )
    paths = [file.file_path for file in files]
    frame = spark.read.schema(wanted).parquet(*paths).withColumn("topic", f.lit(kafka_name(topic)))
    if corrupt is not None:
        bytes_ = f.col("corrupt") if "corrupt" in frame.columns else f.lit(None).cast("binary")
        frame = frame.withColumn(corrupt, bytes_)
    return History(frame.select(*columns.names), offsets)


def _check(table: "LakeTable", columns: t.StructType, files: "list[DataFile]", corrupt: str | None) -> None:
    """LakeError if the table cannot be read with these columns."""
    from weir.spark.lake.columns import fits
    from weir.spark.lake.tables import small

    there = {field.name: small(field.type) for field in table.arrow_schema}
    for name in ("key", "value"):
        if not fits(to_arrow_type(columns[name].dataType, timezone="UTC"), there[name]):
            raise LakeError(
                f"the table of {table.topic} has other {name}s than the topic has now",
                hint="weir lake run --once brings it to the topic's latest schema",
            )
    number = _id(table.table.schema(), "corrupt")
    if corrupt is None and number is not None:
        wrong = sum(
            (file.value_counts or {}).get(number, 0) - (file.null_value_counts or {}).get(number, 0)
            for file in files
        )
        if wrong:
            raise LakeError(
                f"{wrong} values in the table of {table.topic} are not as the topic's schema says",
                hint="read them with mode PERMISSIVE or DROPMALFORMED",
            )


def _with_id(field: t.StructField, schema: "Schema", path: str) -> t.StructField:
    """With the ids of the table's columns, in records too."""
    kind: Any = field.dataType
    if isinstance(kind, t.StructType):
        kind = t.StructType([_with_id(one, schema, f"{path}.{one.name}") for one in kind])
    number = _id(schema, path)
    return t.StructField(field.name, kind, True, {} if number is None else {_FIELD_ID: number})


def _id(schema: "Schema", path: str) -> int | None:
    try:
        return schema.find_field(path).field_id
    except ValueError:
        return None
