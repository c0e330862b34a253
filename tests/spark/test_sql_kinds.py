"""SQL on topics of AVRO, Protobuf or KEY_VALUE: what INSERT writes, queries and the official clients read."""

import json
from base64 import b64encode
from io import BytesIO
from struct import pack
from typing import Any

import fastavro
import pulsar
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pulsar.schema import Array, AvroSchema, Integer, JsonSchema, Map, ProtobufNativeSchema, Record, String

from weir.client.admin import Access, ask_v2
from weir.client.schemas import TopicSchema
from weir.model.errors import SqlError
from weir.model.topics import TopicName
from weir.spark.tables.names import WeirCluster
from weir.spark.tables.topic_tables import Tables
from weir.spark.values.typed import ValueSchema, value_schema

from .sql_session import ORDER, Sql, stored_bytes

KEY = {"type": "record", "name": "Key", "fields": [{"name": "shop", "type": "int"}]}


def _sized(part: str) -> bytes:
    return pack(">i", len(part)) + part.encode()


def _key_value() -> tuple[str, dict[str, str]]:
    data = _sized(json.dumps(KEY)) + _sized(json.dumps(ORDER))
    properties = {
        "key.schema.name": "k",
        "key.schema.type": "AVRO",
        "key.schema.properties": "{}",
        "value.schema.name": "v",
        "value.schema.type": "AVRO",
        "value.schema.properties": "{}",
        "kv.encoding.type": "SEPARATED",
    }
    return b64encode(data).decode(), properties


class KeyedTables(Tables):
    """Knows one schema, and nobody else."""

    def value_schema(self, topic: TopicName) -> ValueSchema:
        definition, properties = _key_value()
        return value_schema(topic.local, [TopicSchema(0, "KEY_VALUE", definition, properties)], permissive=False)


def test_keys_have_the_type_that_the_schema_says() -> None:
    place = WeirCluster(Access("http://nowhere:1"), "nowhere:1")
    columns = KeyedTables(lambda: pytest.fail("no Spark is needed"), place).columns(TopicName.parse("kv"))
    types = {one.name: one.dataType.simpleString() for one in columns}
    assert types["__key"] == "struct<shop:int>"
    assert "__raw_key" not in types


@pytest.mark.process
@pytest.mark.xdist_group("spark")
def test_rows_go_into_topics_of_avro_and_come_back_with_their_keys(sql: Sql) -> None:
    access = sql.place.access
    for name, body in (
        ("sqlk_avro", {"type": "AVRO", "schema": json.dumps(ORDER), "properties": {}}),
        ("sqlk_both", dict(zip(("schema", "properties"), _key_value(), strict=True)) | {"type": "KEY_VALUE"}),
    ):
        sql.topics.create(name=name)
        ask_v2(access, "POST", f"schemas/public/default/{name}/schema", body)
    sql.do("INSERT INTO sqlk_avro (id, amount, key) VALUES (1, 2.5, 'k'), (2, 3, NULL)")
    assert sorted(sql.rows("SELECT id, customer, amount, __key FROM sqlk_avro"), key=str) == [
        (1, None, 2.5, "k"),
        (2, None, 3.0, None),
    ]
    with pytest.raises(SqlError, match="column amount of sqlk_avro is missing"):
        sql.do("INSERT INTO sqlk_avro (id) VALUES (1)")
    sql.do("INSERT INTO sqlk_both SELECT id, amount, named_struct('shop', id * 10) AS key FROM sqlk_avro")
    assert sorted(sql.rows("SELECT __key.shop, id FROM sqlk_both WHERE __key.shop > 5")) == [(10, 1), (20, 2)]


#: Fields that are called as what a message has besides its value.
OWN = {
    "type": "record",
    "name": "Own",
    "fields": [{"name": name, "type": ["null", "string"], "default": None} for name in ("key", "headers")],
}


def _pair(key: tuple[str, str], value: tuple[str, str], encoding: str) -> dict[str, object]:
    """What the registry has of keys and values, each a kind and its definition."""
    told = {f"{name}.schema.type": kind for name, (kind, _) in (("key", key), ("value", value))}
    data = b64encode(_sized(key[1]) + _sized(value[1])).decode()
    return {"type": "KEY_VALUE", "schema": data, "properties": {**told, "kv.encoding.type": encoding}}


@pytest.mark.process
@pytest.mark.xdist_group("spark")
def test_rows_are_written_as_the_schema_says_or_refused_in_a_sentence(sql: Sql) -> None:
    numbers, avro = ("INT32", ""), ("AVRO", json.dumps(ORDER))
    for name, body in (
        ("sqlw_inline", _pair(("AVRO", json.dumps(KEY)), avro, "INLINE")),
        ("sqlw_numbers", _pair(numbers, ("DOUBLE", ""), "SEPARATED")),
        ("sqlw_texts", _pair(("AVRO", json.dumps(KEY)), ("STRING", ""), "SEPARATED")),
        ("sqlw_json", {"type": "JSON", "schema": json.dumps(ORDER), "properties": {}}),
        ("sqlw_own", {"type": "JSON", "schema": json.dumps(OWN), "properties": {}}),
        ("sqlw_own_key", _pair(("AVRO", json.dumps(OWN)), avro, "SEPARATED")),
    ):
        sql.topics.create(name=name)
        ask_v2(sql.place.access, "POST", f"schemas/public/default/{name}/schema", body)
    for statement, query, row in (
        ("sqlw_inline SELECT 1 AS id, 2.5 AS amount, named_struct('shop', 7) AS key", "__key.shop, id", (7, 1)),
        ("sqlw_numbers SELECT 21.5 AS value, -7 AS key", "__key, value", (-7, 21.5)),
        ("sqlw_texts SELECT 'x' AS value, named_struct('shop', 8) AS key", "__key.shop, value", (8, "x")),
        ("sqlw_own (`key`, headers, __key) VALUES ('a', 'b', 'K')", "`key`, headers, __key", ("a", "b", "K")),
        ("sqlw_own_key SELECT 1 AS id, 2 AS amount, named_struct('key', 'x') AS key", "__key.key, id", ("x", 1)),
    ):
        sql.do(f"INSERT INTO {statement}")
        assert sql.rows(f"SELECT {query} FROM {statement.split()[0]}") == [row]
    for statement, told in (
        ("sqlw_json VALUES (NULL, 'ann', 1.5)", "id must not be null"),
        ("sqlw_inline SELECT int(NULL) AS id, 1 AS amount, named_struct('shop', 7) AS key", "id must not be null"),
        ("sqlw_numbers SELECT 'x' AS value, 1 AS key", "'x'"),
        ("sqlw_numbers SELECT 1 AS id, 1 AS key", "select one column AS value"),
        ("sqlw_texts SELECT 'x' AS value, 8 AS key", "named_struct"),
    ):
        with pytest.raises(SqlError) as refused:
            sql.do(f"INSERT INTO {statement}")
        said = str(refused.value)
        assert told in said, said
        assert "\n" not in said, said


class Place(Record):
    street = String()
    city = String()


class Visit(Record):
    who = String(required=True)
    places = Array(Place())
    marks = Map(Integer())


def _message() -> Any:
    """The class that protobuf makes of the same in its own language."""
    file = descriptor_pb2.FileDescriptorProto(name="visit.proto", package="sqlp", syntax="proto3")
    place, visit = (file.message_type.add(name=name) for name in ("Place", "Visit"))
    entry = visit.nested_type.add(name="MarksEntry")
    entry.options.map_entry = True
    for within, number, name, kind in (
        (place, 1, "street", "TYPE_STRING"),
        (place, 2, "city", "TYPE_STRING"),
        (entry, 1, "key", "TYPE_STRING"),
        (entry, 2, "value", "TYPE_INT32"),
        (visit, 1, "who", "TYPE_STRING"),
    ):
        within.field.add(name=name, number=number, type=kind, label="LABEL_OPTIONAL")
    for number, name, inner in ((2, "places", ".sqlp.Place"), (3, "marks", ".sqlp.Visit.MarksEntry")):
        visit.field.add(name=name, number=number, type="TYPE_MESSAGE", type_name=inner, label="LABEL_REPEATED")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("sqlp.Visit"))


@pytest.mark.process
@pytest.mark.xdist_group("spark")
def test_what_is_inserted_is_read_by_pulsars_own_client_with_its_schema(sql: Sql) -> None:
    client = pulsar.Client(sql.topics.up.pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        for schema in (AvroSchema(Visit), JsonSchema(Visit), ProtobufNativeSchema(_message())):
            name = f"sqlp_{type(schema).__name__.lower()}"
            consumer = client.subscribe(name, "s", schema=schema)
            sql.do(
                f"INSERT INTO {name} SELECT 'ann' AS who, map('x', 1) AS marks,"
                " array(named_struct('city', 'Rome', 'street', 'Via')) AS places"
            )
            found = consumer.receive(60_000).value()
            assert (found.who, found.marks) == ("ann", {"x": 1})
            assert (found.places[0].city, found.places[0].street) == ("Rome", "Via")
    finally:
        client.close()


@pytest.mark.process
@pytest.mark.xdist_group("spark")
def test_the_bytes_that_are_inserted_are_what_avros_and_protobufs_own_libraries_read(sql: Sql) -> None:
    """As Kafka's client has them, keys among them."""
    message = _message()
    native = ProtobufNativeSchema(message).schema_info().schema()
    avro = ("AVRO", json.dumps(ORDER))

    def order_of(data: bytes) -> object:
        return fastavro.schemaless_reader(BytesIO(data), fastavro.parse_schema(ORDER), None)

    order, visit = {"id": 1, "customer": "ann", "amount": 2.5}, message(who="ann", marks={"x": 1})
    columns = "1 AS id, 'ann' AS customer, 2.5 AS amount, named_struct('who', 'ann', 'marks', map('x', 1)) AS key"
    for name, body in (
        ("sqlb_separated", _pair(("PROTOBUF_NATIVE", native), avro, "SEPARATED")),
        ("sqlb_inline", _pair(("PROTOBUF_NATIVE", native), avro, "INLINE")),
        ("sqlb_native", {"type": "PROTOBUF_NATIVE", "schema": native, "properties": {}}),
    ):
        sql.topics.create(name=name)
        ask_v2(sql.place.access, "POST", f"schemas/public/default/{name}/schema", body)
    sql.do(f"INSERT INTO sqlb_separated SELECT {columns}")
    sql.do(f"INSERT INTO sqlb_inline SELECT {columns}")
    sql.do("INSERT INTO sqlb_native (who, marks, key) VALUES ('ann', map('x', 1), 'k')")
    ((raw_key, value),) = stored_bytes(sql.topics.servers, "sqlb_separated")
    assert raw_key is not None
    assert (message.FromString(raw_key), order_of(value)) == (visit, order)
    ((raw_key, both),) = stored_bytes(sql.topics.servers, "sqlb_inline")
    assert raw_key is None
    size = int.from_bytes(both[:4], "big")
    assert (message.FromString(both[4 : 4 + size]), order_of(both[8 + size :])) == (visit, order)
    ((raw_key, value),) = stored_bytes(sql.topics.servers, "sqlb_native")
    assert (raw_key, message.FromString(value)) == (b"k", visit)
    for name in ("sqlb_separated", "sqlb_inline"):
        assert sql.rows(f"SELECT __key.who, __key.marks['x'], id, customer FROM {name}") == [("ann", 1, 1, "ann")]
