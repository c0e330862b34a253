"""INSERT INTO a topic: the rows of a query become messages, all of them or none."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as f
from pyspark.sql import types as t

from weir.model.errors import SqlError
from weir.model.topics import TopicName
from weir.spark.sql.cluster import WeirCluster, kafka_name, table_name, topic_named
from weir.spark.sql.output import is_about, messages, written_beside
from weir.spark.sql.queries import Query, quoted
from weir.spark.sql.results import Done
from weir.spark.sql.statements import Insert
from weir.spark.sql.tables import Tables
from weir.spark.values.typed import ValueSchema

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
    return _messages(_named(frame, statement, topic, schema), topic, schema)


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


def _messages(frame: DataFrame, topic: TopicName, schema: ValueSchema | None) -> DataFrame:
    if schema is None or schema.kind == "STRING":
        found = messages(frame, topic.local)
        if schema is not None and found.schema is not None:
            raise SqlError(f"the values of {table_name(topic)} are texts", hint="select one column AS value")
        return found.frame
    if schema.kind != "JSON" or not isinstance(schema.type, t.StructType):
        raise SqlError(
            f"the values of {table_name(topic)} are {schema.kind}, and SQL writes JSON",
            hint="write it with a client that has its schema, or into another topic",
        )
    fields = {field["name"].lower(): field for field in json.loads(schema.definition)["fields"]}
    types = {field.name.lower(): field for field in schema.type}
    given = {name.lower(): name for name in frame.columns if not is_about(name)}
    _check_columns(given, fields, topic)
    values = [
        _value(f.col(quoted(name)), types[key], fields[key]["type"], topic).alias(types[key].name)
        for key, name in given.items()
    ]
    return frame.select(f.to_json(f.struct(*values)).alias("value"), *written_beside(frame.schema))


def _check_columns(given: Mapping[str, str], fields: Mapping[str, Mapping[str, Any]], topic: TopicName) -> None:
    names = ", ".join(field["name"] for field in fields.values())
    for key, name in given.items():
        if key not in fields:
            raise SqlError(f"{table_name(topic)} has no column {name}", hint=f"it has {names}")
    for key, field in fields.items():
        optional = "default" in field or (isinstance(field["type"], list) and "null" in field["type"])
        if key not in given and not optional:
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
