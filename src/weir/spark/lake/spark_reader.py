"""A topic's history as Spark reads it from the table, and where the topic itself goes on: each offset on one side.

The seam is what one snapshot of the table says: rows before it come from that snapshot's files, by Spark's own
Parquet reader, the others from the brokers. Exports, trims and producers that come later move nothing.
"""

import json
import logging
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from weir.client.kafka.cluster import Cluster
from weir.client.schemas import kafka_name
from weir.model.errors import LakeError, NotAuthenticatedError, NotAuthorisedError
from weir.model.topics import TopicName
from weir.spark.columns import RAW_KEY, RAW_VALUE
from weir.spark.lake.catalog import Definition, PatientReads, namespace_lake, store_options
from weir.spark.tables.names import WeirCluster

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema

    from weir.spark.lake.table import LakeTable

log = logging.getLogger(__name__)

#: By which Spark's reader finds a column, whatever it was called when the file was written.
_FIELD_ID, _READ_IDS = "parquet.field.id", "spark.sql.parquet.fieldId.read.enabled"
#: No column's name: the topic has got a schema since the last export, and what was before has no values by it.
_UNTYPED = ""
#: Settings of Hadoop's client of S3, by pyiceberg's names.
_S3A = {
    "s3.endpoint": "fs.s3a.endpoint",
    "s3.region": "fs.s3a.endpoint.region",
    "s3.access-key-id": "fs.s3a.access.key",
    "s3.secret-access-key": "fs.s3a.secret.key",
    "s3.session-token": "fs.s3a.session.token",
}


@dataclass(frozen=True, slots=True)
class History:
    """`frame`: the rows that are in the table; None if there are none. `offsets`: where the topic goes on."""

    frame: DataFrame | None
    offsets: dict[int, int]

    def seam(self, topic: TopicName) -> str:
        """For the source that reads the rest."""
        return json.dumps({kafka_name(topic): {str(part): offset for part, offset in self.offsets.items()}})


def find_history(
    spark: SparkSession,
    place: WeirCluster,
    cluster: Cluster,
    topic: TopicName,
    columns: t.StructType,
    *,
    corrupt: str | None,
) -> History | None:
    """None if the topic has no table that Spark can read: that of a topic of the same name that was deleted is not
    its own. `columns`: those of the source that reads the rest; `corrupt`: which of them has the bytes of values
    that do not fit; None: there must be no such values."""
    try:
        definition = namespace_lake(place.access, topic.namespace).read(topic)
    except (
        NotAuthorisedError,
        NotAuthenticatedError,
    ):  # to look at a namespace's properties one must administer it
        return None
    if definition is None:
        return None
    from weir.spark.lake.table import find_table, is_own

    patient = PatientReads(definition.to)
    table = patient(lambda: find_table(topic, definition))
    if table is None or not is_own(table, definition) or not table.is_of(cluster.topic_id(kafka_name(topic))):
        return None
    if not table.location.startswith("file:") and not _reads_buckets(spark):
        log.warning("the history of %s is in %s, which this Spark does not read", topic, table.location)
        return None
    found_table = table.table
    planned = patient(lambda: list(found_table.scan().plan_files()))
    files = [task.file for task in planned]
    offsets = table.offsets()
    if not files:
        return History(None, offsets)
    _check(table, columns, files, corrupt)
    schema = table.table.schema()
    stored = {name: _stored(name, columns, table, corrupt) for name in columns.names if name != "topic"}
    by_id = _renamed(table)
    if by_id:
        # A session that the user built does not have it; of files and schemas without ids it changes nothing.
        spark.conf.set(_READ_IDS, "true")
    wanted = [
        _with_id(t.StructField(there, columns[name].dataType), schema, there)
        if by_id
        else t.StructField(there, columns[name].dataType)
        for there, name in {there: name for name, there in stored.items()}.items()
        if _id(schema, there) is not None
    ]

    def rows_of(lacking: frozenset[str], some: "list[DataFile]") -> DataFrame:
        paths = _readable(spark, [file.file_path for file in some], definition)
        known = t.StructType([field for field in wanted if field.name not in lacking])
        frame = spark.read.schema(known).parquet(*paths)
        found = [
            f.lit(kafka_name(topic)).alias(name)
            if name == "topic"
            else _column(frame, stored[name], columns[name])
            for name in columns.names
        ]
        return frame.select(*found)

    frames = [rows_of(lacking, some) for lacking, some in _by_what_they_lack(table, files).items()]
    return History(reduce(DataFrame.unionByName, frames), offsets)


def _reads_buckets(spark: SparkSession) -> bool:
    return _has_s3a(spark) or (spark.sparkContext.master or "").startswith("local")


def _has_s3a(spark: SparkSession) -> bool:
    """Whether Hadoop's own client of S3 is there, which PySpark does not bring."""
    try:
        jvm: Any = spark._jvm
        jvm.java.lang.Class.forName("org.apache.hadoop.fs.s3a.S3AFileSystem")
    except Exception:
        return False
    return True


def _readable(spark: SparkSession, files: list[str], definition: Definition) -> list[str]:
    """The files as Spark's reader finds them."""
    if files[0].startswith("file:"):
        return files
    options = store_options(definition)
    if not _has_s3a(spark):
        from weir.spark.lake.webhdfs import gateway

        return gateway().paths(files, options)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    for name, setting in _S3A.items():
        if name in options:
            hadoop.set(setting, options[name])
    if "s3.endpoint" in options:
        hadoop.set("fs.s3a.path.style.access", "true")
    return [f"s3a://{one.partition('://')[2]}" for one in files]


def _stored(name: str, columns: t.StructType, table: "LakeTable", corrupt: str | None) -> str:
    """What the table calls a column of the source's: bytes are in another column where they are typed, too."""
    if name == corrupt:
        return "corrupt"
    import pyarrow as pa

    from weir.spark.lake.table import small

    there = {field.name: pa.types.is_binary(small(field.type)) for field in table.arrow_schema}
    if name in ("key", "value") and there[name] and not isinstance(columns[name].dataType, t.BinaryType):
        return _UNTYPED
    if name == RAW_KEY or (name == "key" and isinstance(columns["key"].dataType, t.BinaryType)):
        return "key" if there["key"] else RAW_KEY
    if name == RAW_VALUE or (name == "value" and isinstance(columns["value"].dataType, t.BinaryType)):
        return "value" if there["value"] else RAW_VALUE
    return name


def _column(frame: DataFrame, stored: str, wanted: t.StructField) -> Column:
    there = f.col(stored) if stored in frame.columns else f.lit(None).cast(wanted.dataType)
    return there.alias(wanted.name, metadata={})


def _check(table: "LakeTable", columns: t.StructType, files: "list[DataFile]", corrupt: str | None) -> None:
    """LakeError if the table cannot be read with these columns."""
    from weir.spark.lake.parquet import reads_as
    from weir.spark.lake.table import small

    there = {field.name: small(field.type) for field in table.arrow_schema}
    for name in ("key", "value"):
        stored, wanted = _stored(name, columns, table, corrupt), columns[name].dataType
        if stored == _UNTYPED:
            continue
        if stored not in there or not reads_as(there[stored], small(to_arrow_type(wanted, timezone="UTC"))):
            raise LakeError(
                f"the table of {table.topic} has other {name}s than the topic has now",
                hint="weir lake run --once brings it to the topic's latest schema",
            )
        column = _id(table.table.schema(), stored)
        if stored != name and any(column not in (file.value_counts or {}) for file in files):
            raise LakeError(
                f"some files of the table of {table.topic} have typed {name}s, and not the bytes that were sent",
                hint="read it with valueFormat=schema, or with lake=false what the brokers have",
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


def _by_what_they_lack(table: "LakeTable", files: "list[DataFile]") -> "dict[frozenset[str], list[DataFile]]":
    """Files by the columns that they do not have, of those whose names another column had before: of these Spark
    would read that other one, and fail, also where it is told the ids."""
    schema = table.table.schema()
    before = [(old.find_column_name(one), one) for old in table.table.metadata.schemas for one in old.field_ids]
    leaves = {
        field.name: {one for one in schema.field_ids if _root(schema, one) == field.name}
        for field in schema.fields
        if any(name == field.name and number != field.field_id for name, number in before)
    }
    found: dict[frozenset[str], list[DataFile]] = {}
    for file in files:
        counted = (file.value_counts or {}).keys()
        lacking = frozenset(name for name, ids in leaves.items() if counted and not ids & counted)
        found.setdefault(lacking, []).append(file)
    return found


def _root(schema: "Schema", number: int) -> str:
    return (schema.find_column_name(number) or "").partition(".")[0]


def _renamed(table: "LakeTable") -> bool:
    """Whether a column ever had another name, or a name another column. Else files are read by names: Spark keeps
    ids with columns, whatever becomes of those, and takes them for the ids in files that a query writes."""
    ids: dict[str, int] = {}
    names: dict[int, str] = {}
    for schema in table.table.metadata.schemas:
        for number in schema.field_ids:
            name = schema.find_column_name(number) or ""
            if ids.setdefault(name, number) != number or names.setdefault(number, name) != name:
                return True
    return False


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
