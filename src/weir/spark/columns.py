"""The columns of a topic as Spark sees it: those of Spark's own Kafka source."""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_COLUMNS = [
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
]
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def schema_of(*, headers: bool, value: DataType | None = None) -> StructType:
    """The headers are a column only if they are asked for, as in Spark's Kafka source. `value`: its type, if it is
    not just bytes."""
    columns = [*_COLUMNS, StructField("headers", ArrayType(_HEADER))] if headers else list(_COLUMNS)
    if value is not None:
        columns[1] = StructField("value", value)
    return StructType(columns)
