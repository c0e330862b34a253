"""The columns of a topic as Spark sees it: those of Spark's own Kafka source."""

from difflib import get_close_matches

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from weir.model.errors import ConfigError

_COLUMNS = [
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
]
#: Key and value as they came, beside what they are typed as.
RAW_KEY, RAW_VALUE = "raw_key", "raw_value"
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def schema_of(
    *,
    headers: bool,
    value: DataType | None = None,
    key: DataType | None = None,
    corrupt: str | None = None,
    raw: bool = False,
) -> StructType:
    """The headers are a column only if they are asked for, as in Spark's Kafka source. `value` and `key`: their
    types, if they are not just bytes. `corrupt`: the column for the bytes of values that do not fit. `raw`: two
    columns more, for the bytes of all."""
    columns = [*_COLUMNS, StructField("headers", ArrayType(_HEADER))] if headers else list(_COLUMNS)
    if value is not None:
        columns[1] = StructField("value", value)
    if key is not None:
        columns[0] = StructField("key", key)
    if corrupt is not None:
        columns.append(StructField(corrupt, BinaryType()))
    if raw:
        columns += [StructField(name, BinaryType()) for name in (RAW_KEY, RAW_VALUE)]
    return StructType(columns)


#: What a sink takes: each column's types, by its name. Only the value must be there.
_WRITTEN: dict[str, tuple[type[DataType], ...]] = {
    "value": (BinaryType, StringType),
    "key": (BinaryType, StringType),
    "topic": (StringType,),
    "partition": (IntegerType,),
    "timestamp": (TimestampType,),
    "headers": (ArrayType,),
    "deliverAt": (TimestampType,),
}
#: Columns of a source that a sink leaves out, so that what was read can be written as it is.
_LEFT_OUT = ("offset", "timestampType")


def check_columns(schema: StructType) -> None:
    """ConfigError unless these are columns that a sink can write."""
    if "value" not in schema.names:
        raise ConfigError("there is no column value", hint="select what is to be written AS value")
    for column in schema:
        if column.name in _LEFT_OUT:
            continue
        types = _WRITTEN.get(column.name)
        if types is None:
            near = get_close_matches(column.name, _WRITTEN, 1)
            said = f"did you mean {near[0]}?" if near else f"the columns are {', '.join(_WRITTEN)}"
            raise ConfigError(f"a sink has no column {column.name}", hint=said)
        if not isinstance(column.dataType, (*types, NullType)):
            wanted = " or ".join(kind.typeName() for kind in types)
            raise ConfigError(
                f"column {column.name} is {column.dataType.simpleString()}", hint=f"cast it to {wanted}"
            )
        if isinstance(column.dataType, ArrayType):
            _check_headers(column.dataType)


def _check_headers(column: ArrayType) -> None:
    element = column.elementType
    if not isinstance(element, StructType) or [type(one.dataType) for one in element] != [StringType, BinaryType]:
        raise ConfigError(
            f"column headers is {column.simpleString()}", hint="make it array<struct<key:string,value:binary>>"
        )
