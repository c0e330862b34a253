"""INSERT INTO a topic: the rows of a query become messages, all of them or none.

The rows of a query as messages: a key, a JSON value, and the schema that makes the topic a table in turn.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.functions import arrow_udf

from weir.client.schemas import kafka_name
from weir.model.definitions import table_name
from weir.model.errors import SqlError
from weir.model.messages import CANCEL, DELAY_ID, DELIVER_AFTER, DELIVER_AT
from weir.model.topics import TopicName
from weir.spark.sql.results import Done
from weir.spark.sql.statements import Insert
from weir.spark.tables.names import WeirCluster, topic_named
from weir.spark.tables.query import Query, quoted
from weir.spark.tables.topic_tables import Tables, as_sent
from weir.spark.values.encoding import PACKED, arrow_encoder, plain_encoder
from weir.spark.values.typed import ValueSchema
from weir.wire.pulsar.translation import SCHEMA_VERSION

#: Columns that are not part of the value, and what a sink calls them.
_KEY, _HEADERS, _TIME = ("key", "__raw_key", "__key"), ("headers", "__headers"), ("__timestamp",)
#: Headers that hold where a message was, and nowhere else: by which version of the topic's schema it was written,
#: and a delay, which is over.
_OF_THE_SOURCE = (SCHEMA_VERSION, *(name.decode() for name in (DELIVER_AT, DELIVER_AFTER, DELAY_ID, CANCEL)))
_PLAIN: dict[type[t.DataType], str] = {
    t.BooleanType: "boolean",
    t.ByteType: "int",
    t.ShortType: "int",
    t.IntegerType: "int",
    t.LongType: "long",
    t.FloatType: "float",
    t.DoubleType: "double",
    t.DecimalType: "double",
    t.StringType: "string",
}


@dataclass(frozen=True, slots=True)
class Messages:
    """What a sink writes. `schema`: the value's, as the registry has it; None if the value is written as it is."""

    frame: DataFrame
    schema: str | None


def messages(frame: DataFrame, record: str) -> Messages:
    """`record`: the name of the record in the schema."""
    columns, definition = message_columns(frame.schema, record)
    return Messages(frame.select(*columns), definition)


def message_columns(schema: t.StructType, record: str) -> tuple[list[Column], str | None]:
    """What is selected of rows with these columns to write them, and the value's schema."""
    _check_names(schema)
    columns = [field for field in schema if not is_about(field.name)]
    written = [column.alias(name) for column, name in written_beside(schema)]
    if [field.name for field in columns] == ["value"] and isinstance(columns[0].dataType, _RAW):
        return [f.col("value"), *written], None
    if not columns:
        raise SqlError("there is nothing to be written", hint="select columns besides the key")
    fields = [part for field in columns for part in _fields(field, quoted(field.name), field.name)]
    twice = [name for name, count in Counter(name.lower() for name, _, _ in fields).items() if count > 1]
    if twice:
        raise SqlError(f"two columns are called {twice[0]}", hint="give them names with AS")
    value = f.to_json(f.struct(*(column.alias(name) for name, column, _ in fields))).alias("value")
    definition = {
        "type": "record",
        "name": _record_name(record),
        "fields": [{"name": name, "type": ["null", kind], "default": None} for name, _, kind in fields],
    }
    return [value, *written], json.dumps(definition)


_RAW = (t.StringType, t.BinaryType)


def is_about(name: str, own: Collection[str] = ()) -> bool:
    """Whether a column is about a message rather than in its value. `own`: the fields that values have, in small
    letters: these are what they are there, whatever they are called."""
    return name.lower() not in own and (name.startswith("__") or name.lower() in (*_KEY, *_HEADERS))


def written_beside(schema: t.StructType, own: Collection[str] = ()) -> list[tuple[Column, str]]:
    """Key, headers and time, and the names that a sink has for them."""
    found = []
    fields = {field.name.lower(): field for field in schema if is_about(field.name, own)}
    for names, called in ((_KEY, "key"), (_HEADERS, "headers"), (_TIME, "timestamp")):
        field = next((fields[name] for name in names if name in fields), None)
        if field is None or (called == "timestamp" and not isinstance(field.dataType, t.TimestampType)):
            continue
        column = f.col(quoted(field.name))
        if field.name.lower() == "__headers":
            column = f.filter(column, lambda header: ~header["key"].isin(*_OF_THE_SOURCE))
        if called == "key" and isinstance(field.dataType, t.StructType):
            column = f.to_json(column)
        elif called == "key" and not isinstance(field.dataType, _RAW):
            column = column.cast("string")
        found.append((column, called))
    return found


def _check_names(schema: t.StructType) -> None:
    counted = Counter(field.name.lower() for field in schema)
    for field in schema:
        if counted[field.name.lower()] > 1:
            raise SqlError(f"two columns are called {field.name}", hint="give them names with AS")
        if not (field.name.isascii() and field.name.isidentifier()):
            raise SqlError(f"{field.name!r} cannot be a field of a message", hint="give it a name with AS")


def _fields(field: t.StructField, path: str, name: str) -> list[tuple[str, Column, Any]]:
    """A column as fields of the value: each one's name, what is written, and its type in the schema. The parts of
    a struct, such as a window, become fields of their own."""
    if isinstance(field.dataType, t.StructType):
        inner = [(one, f"{path}.{quoted(one.name)}", f"{name}_{one.name}") for one in field.dataType]
        return [part for one in inner for part in _fields(*one)]
    column, kind = _field(f.col(path), field.dataType)
    return [(name, column, kind)]


def _field(column: Column, kind: t.DataType) -> tuple[Column, Any]:
    match kind:
        case t.TimestampType():
            return f.unix_millis(column), {"type": "long", "logicalType": "timestamp-millis"}
        case t.DateType():
            return f.unix_date(column), {"type": "int", "logicalType": "date"}
        case t.BinaryType():
            return f.base64(column), "string"
        case t.ArrayType() | t.MapType():
            return f.to_json(column), "string"
    plain = next((word for one, word in _PLAIN.items() if isinstance(kind, one)), None)
    return (column.cast("string"), "string") if plain is None else (column, plain)


def _record_name(name: str) -> str:
    plain = "".join(char if char.isascii() and char.isalnum() else "_" for char in name)
    return plain if plain[:1].isalpha() else f"s_{plain}"


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
    frame = as_messages(tables.frame(query, streaming=False, options=as_sent(query)), statement, topic, schema)
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
    if registered is None or (registered.kind == "STRING" and registered.key is None):
        columns, definition = message_columns(schema, topic.local)
        if registered is not None and definition is not None:
            raise SqlError(f"the values of {table_name(topic)} are texts", hint="select one column AS value")
        return columns, definition
    value = _value_column(schema, topic, registered)
    beside = _beside(schema, topic, registered)
    if registered.inline:  # each behind its size
        key = next((column for column, name in beside if name == "key"), None)
        parts = (f.lit(None).cast("binary") if key is None else key, value)
        value = f.concat(*(one for part in parts for one in _sized(part.cast("binary"))))
        beside = [(column, name) for column, name in beside if name != "key"]
    return [value.alias("value"), *(column.alias(name) for column, name in beside)], None


def _sized(part: Column) -> tuple[Column, Column]:
    """A part's size in four bytes, and the part; -1 and nothing if it is null."""
    size = f.unhex(f.lpad(f.hex(f.octet_length(part)), 8, "0"))
    return f.coalesce(size, f.unhex(f.lit("FFFFFFFF"))), f.coalesce(part, f.unhex(f.lit("")))


def _own(registered: ValueSchema) -> frozenset[str]:
    """The names of its fields, as columns are compared."""
    return frozenset(name.lower() for name in getattr(registered.type, "names", ()))


def _beside(schema: t.StructType, topic: TopicName, registered: ValueSchema) -> list[tuple[Column, str]]:
    """Key, headers and time, and their names; the key by its schema, if it has one."""
    key, own = registered.key, _own(registered)
    if key is None or key.kind in ("STRING", "BYTES"):
        return written_beside(schema, own)
    if key.kind not in (*_WRITTEN, *PACKED):
        raise SqlError(
            f"the keys of {table_name(topic)} are {key.kind}, and SQL writes texts, {', '.join(_WRITTEN)}",
            hint="write it with a client that has its schema",
        )
    keys = [field for field in schema if field.name.lower() in {"key", "__key", "__raw_key"} - own]
    given = next((field for field in keys if field.name.lower() != "__raw_key"), None)
    if given is None:
        raise SqlError(f"the messages of {table_name(topic)} have keys", hint="select a column AS key")
    others = t.StructType([field for field in schema if field not in keys])
    if key.kind in PACKED:
        return [(_packed(f.col(quoted(given.name)), key), "key"), *written_beside(others, own)]
    if not isinstance(given.dataType, t.StructType):
        raise SqlError(
            f"the keys of {table_name(topic)} are {key.kind}, and {given.name} is {given.dataType.simpleString()}",
            hint="select named_struct('field', value, ...) AS key",
        )
    made = _value_column(given.dataType, topic, key, within=quoted(given.name))
    return [(made, "key"), *written_beside(others, own)]


def _value_column(schema: t.StructType, topic: TopicName, registered: ValueSchema, within: str = "") -> Column:
    """The value, or the key, as bytes or text. `within`: the column that the fields are parts of."""
    own = _own(registered)
    given = {field.name.lower(): field for field in schema if not is_about(field.name, own)}
    if registered.kind in (*PACKED, "STRING", "BYTES") and set(given) == {"value"}:
        value = f.col(quoted(given["value"].name))
        return _packed(value, registered) if registered.kind in PACKED else value.cast(registered.type)
    if registered.kind in PACKED:
        raise SqlError(
            f"the values of {table_name(topic)} are {registered.kind}", hint="select one column AS value"
        )
    if registered.kind not in _WRITTEN or not isinstance(registered.type, t.StructType):
        raise SqlError(
            f"the values of {table_name(topic)} are {registered.kind}, and SQL writes {', '.join(_WRITTEN)}",
            hint="write it with a client that has its schema, or into another topic",
        )
    types = {field.name.lower(): field for field in registered.type}
    _check_columns({key: field.name for key, field in given.items()}, types, registered, topic)
    places = {
        key: _cast(
            f.col(f"{within}.{quoted(field.name)}" if within else quoted(field.name)),
            field.dataType,
            types[key].dataType,
            f"{table_name(topic)}.{types[key].name}",
        )
        for key, field in given.items()
    }
    if registered.kind == "JSON":
        fields = {field["name"].lower(): field for field in json.loads(registered.definition)["fields"]}
        values = [
            _value(place, types[key], fields[key]["type"], topic).alias(types[key].name)
            for key, place in places.items()
        ]
        return f.to_json(f.struct(*values))
    encode = _by_arrow(arrow_encoder(registered.kind, registered.definition, table_name(topic)))
    made: Column = encode(f.struct(*(place.alias(types[key].name) for key, place in places.items())))
    return made


def _packed(column: Column, registered: ValueSchema) -> Column:
    """A number or boolean, as Pulsar's clients write it."""
    made: Column = _by_arrow(plain_encoder(registered.kind))(column.cast(registered.type))
    return made


def _by_arrow(encode: Callable[[Any], Any]) -> Any:
    made_by: Any = arrow_udf  # its stubs know fewer ways to call it
    return made_by(encode, returnType=t.BinaryType())


def _cast(column: Column, given: t.DataType, wanted: t.DataType, path: str) -> Column:
    """As the type says. The parts of a struct go by their names, where it has any of them: Spark's own cast takes
    them by their places, and would put one into the other."""
    match given, wanted:
        case t.StructType(), t.StructType():
            there = {field.name.lower(): field for field in given}
            if not any(field.name.lower() in there for field in wanted):
                return column.cast(wanted)  # struct(1, 'x') has no names
            unknown = sorted(set(there) - {field.name.lower() for field in wanted})
            if unknown:
                raise SqlError(f"{path} has no field {unknown[0]}", hint=f"it has {', '.join(wanted.names)}")
            parts = []
            for field in wanted:
                found = there.get(field.name.lower())
                part = (
                    f.lit(None).cast(field.dataType)
                    if found is None
                    else _cast(column.getField(found.name), found.dataType, field.dataType, f"{path}.{field.name}")
                )
                parts.append(part.alias(field.name))
            return f.when(column.isNotNull(), f.struct(*parts))
        case t.ArrayType(), t.ArrayType() if isinstance(given.elementType, (t.StructType, t.ArrayType, t.MapType)):
            return f.transform(column, lambda one: _cast(one, given.elementType, wanted.elementType, path))
        case t.MapType(), t.MapType() if isinstance(given.valueType, (t.StructType, t.ArrayType, t.MapType)):
            inner = f.transform_values(column, lambda _, one: _cast(one, given.valueType, wanted.valueType, path))
            return inner.cast(wanted)
    return column.cast(wanted)


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
    """What JSON has for a value of this type, which it must be if the schema knows no null."""
    nullable = not isinstance(definition, str | dict) and "null" in definition
    missing = f.raise_error(
        f.lit(f"a row does not fit the schema of {table_name(topic)}: {field.name} must not be null")
    )
    cast = column if nullable else f.coalesce(column, missing)
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
