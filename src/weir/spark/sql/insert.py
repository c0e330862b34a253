"""INSERT INTO a topic: the rows of a query become messages, all of them or none."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.functions import arrow_udf

from weir.model.errors import SqlError
from weir.model.topics import TopicName
from weir.spark.sql.cluster import WeirCluster, kafka_name, table_name, topic_named
from weir.spark.sql.output import is_about, message_columns, written_beside
from weir.spark.sql.queries import Query, quoted
from weir.spark.sql.results import Done
from weir.spark.sql.statements import Insert
from weir.spark.sql.tables import Tables
from weir.spark.values.encoding import arrow_encoder
from weir.spark.values.typed import ValueSchema

_PROTOBUF = ("PROTOBUF", "PROTOBUF_NATIVE")
#: The kinds of schemas that rows are written by.
_WRITTEN = ("JSON", "AVRO", *_PROTOBUF)
#: As JSON writes them, so Avro's JSON has them.
_SAME = (
    t.BooleanType,
    t.ByteType,
    t.ShortType,
    t.IntegerType,
    t.LongType,
    t.FloatType,
    t.DoubleType,
    t.StringType,
)


def insert(tables: Tables, place: WeirCluster, statement: Insert, query: Query) -> Done:
    """SqlError if the topic has no such columns."""
    topic = topic_named(statement.name)
    tables.check_exists(topic)
    schema = tables.value_schema(topic)
    frame = as_messages(tables.frame(query, streaming=False), statement, topic, schema)
    counted = Observation()
    rows = frame.observe(counted, f.count(f.lit(1)).alias("rows"))
    rows.write.format("weir").options(**place.options, topic=kafka_name(topic)).mode("append").save()
    count = int(counted.get["rows"])
    return Done(f"{count} rows inserted into {table_name(topic)}", {"topic": table_name(topic), "rows": count})


def as_messages(frame: DataFrame, statement: Insert, topic: TopicName, schema: ValueSchema | None) -> DataFrame:
    """What would be written; SqlError if the topic has no such columns."""
    named = _named(frame, statement, topic, schema)
    return named.select(*written_columns(named.schema, topic, schema)[0])


def _named(frame: DataFrame, statement: Insert, topic: TopicName, schema: ValueSchema | None) -> DataFrame:
    """The rows with names of the topic's columns: as the statement says, or by place if they have none."""
    names: Sequence[str] = statement.columns
    if not names and statement.literal:
        names = schema.type.names if schema is not None and isinstance(schema.type, t.StructType) else ["value"]
    if not names:
        return frame
    if len(names) != len(frame.columns):
        raise SqlError(
            f"there are {len(frame.columns)} values for {len(names)} columns of {table_name(topic)}",
            hint=f"write INSERT INTO {table_name(topic)} ({', '.join(names)}) ..., in the order of the values",
        )
    return frame.toDF(*names)


def written_columns(
    schema: t.StructType, topic: TopicName, registered: ValueSchema | None
) -> tuple[list[Column], str | None]:
    """What is selected of rows with these columns to write them as the topic's schema says, and the JSON schema
    that they would have if the topic has none. SqlError says what does not fit."""
    if registered is None or registered.kind == "STRING":
        columns, definition = message_columns(schema, topic.local)
        if registered is not None and definition is not None:
            raise SqlError(f"the values of {table_name(topic)} are texts", hint="select one column AS value")
        return columns, definition
    if registered.inline:
        raise SqlError(
            f"key and value of {table_name(topic)} are both in the value (KEY_VALUE, INLINE)",
            hint="write it with a client that has its schema, or register it as SEPARATED",
        )
    value = _value_column(schema, topic, registered).alias("value")
    return [value, *_beside(schema, topic, registered.key)], None


def _beside(schema: t.StructType, topic: TopicName, key: ValueSchema | None) -> list[Column]:
    """Key, headers and time; the key by its schema, if it has one."""
    if key is None or key.kind == "STRING":
        return written_beside(schema)
    if key.kind not in _WRITTEN:
        raise SqlError(
            f"the keys of {table_name(topic)} are {key.kind}, and SQL writes texts, {', '.join(_WRITTEN)}",
            hint="write it with a client that has its schema",
        )
    given = next((field for field in schema if field.name.lower() in ("key", "__key")), None)
    if given is None:
        raise SqlError(f"the messages of {table_name(topic)} have keys", hint="select a column AS key")
    others = t.StructType([field for field in schema if field.name.lower() not in ("key", "__key", "__raw_key")])
    if not isinstance(given.dataType, t.StructType):
        raise SqlError(
            f"the keys of {table_name(topic)} are {key.kind}, and {given.name} is {given.dataType.simpleString()}",
            hint="select named_struct('field', value, ...) AS key",
        )
    inner = t.StructType([field for field in given.dataType if not is_about(field.name)])
    made = _value_column(inner, topic, key, within=quoted(given.name))
    return [made.alias("key"), *written_beside(others)]


def _value_column(schema: t.StructType, topic: TopicName, registered: ValueSchema, within: str = "") -> Column:
    """The value, or the key, as bytes or text. `within`: the column that the fields are parts of."""
    if registered.kind not in _WRITTEN or not isinstance(registered.type, t.StructType):
        raise SqlError(
            f"the values of {table_name(topic)} are {registered.kind}, and SQL writes {', '.join(_WRITTEN)}",
            hint="write it with a client that has its schema, or into another topic",
        )
    types = {field.name.lower(): field for field in registered.type}
    given = {field.name.lower(): field.name for field in schema if not is_about(field.name)}
    _check_columns(given, types, registered, topic)
    places = {key: f.col(f"{within}.{quoted(name)}" if within else quoted(name)) for key, name in given.items()}
    if registered.kind == "JSON":
        fields = {field["name"].lower(): field for field in json.loads(registered.definition)["fields"]}
        values = [
            _value(place, types[key], fields[key]["type"], topic).alias(types[key].name)
            for key, place in places.items()
        ]
        return f.to_json(f.struct(*values))
    made_by: Any = arrow_udf  # its stubs know fewer ways to call it
    encode = made_by(
        arrow_encoder(registered.kind, registered.definition, table_name(topic)), returnType=t.BinaryType()
    )
    made: Column = encode(
        f.struct(*(place.cast(types[key].dataType).alias(types[key].name) for key, place in places.items()))
    )
    return made


def _check_columns(
    given: Mapping[str, str], types: Mapping[str, t.StructField], registered: ValueSchema, topic: TopicName
) -> None:
    names = ", ".join(field.name for field in types.values())
    for key, name in given.items():
        if key not in types:
            raise SqlError(f"{table_name(topic)} has no column {name}", hint=f"it has {names}")
    if registered.kind in _PROTOBUF:
        return  # a field that is not there is what it is by default
    for field in json.loads(registered.definition)["fields"]:
        optional = "default" in field or (isinstance(field["type"], list) and "null" in field["type"])
        if field["name"].lower() not in given and not optional:
            raise SqlError(f"column {field['name']} of {table_name(topic)} is missing", hint=f"it has {names}")


def _value(column: Column, field: t.StructField, definition: Any, topic: TopicName) -> Column:
    """What JSON has for a value of this type."""
    cast = column.cast(field.dataType)
    kinds = [one for one in (definition if isinstance(definition, list) else [definition]) if one != "null"]
    logical = kinds[0].get("logicalType") if isinstance(kinds[0], dict) else None
    if isinstance(field.dataType, t.TimestampType) and logical in ("timestamp-millis", "timestamp-micros"):
        return f.unix_millis(cast) if logical == "timestamp-millis" else f.unix_micros(cast)
    if isinstance(field.dataType, t.DateType):
        return f.unix_date(cast)
    if not _is_same(field.dataType):
        raise SqlError(
            f"column {field.name} of {table_name(topic)} is {field.dataType.simpleString()}: SQL cannot write it",
            hint="write it with a client that has its schema",
        )
    return cast


def _is_same(kind: t.DataType) -> bool:
    match kind:
        case t.StructType():
            return all(_is_same(field.dataType) for field in kind)
        case t.ArrayType():
            return _is_same(kind.elementType)
        case t.MapType():
            return _is_same(kind.valueType)
    return isinstance(kind, _SAME)
