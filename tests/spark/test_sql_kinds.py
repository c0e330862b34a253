"""SQL on topics whose schemas are AVRO or KEY_VALUE: what INSERT writes, a query reads; and certificates."""

import json
from base64 import b64encode
from pathlib import Path
from struct import pack

import pulsar
import pytest
from pulsar.schema import Array, AvroSchema, Integer, JsonSchema, Map, Record, String

from weir.client.blocking import Access, ask_v2
from weir.client.kafka.cluster import Cluster
from weir.client.registry import TopicSchema
from weir.model.errors import NetworkError, SqlError
from weir.model.topics import TopicName
from weir.spark.source.options import connection
from weir.spark.sql.cluster import WeirCluster
from weir.spark.sql.tables import Tables
from weir.spark.values.typed import ValueSchema, value_schema
from weir.testing.certificates import make_certificate
from weir.testing.processes.up import UpProcess

from .sql_session import ORDER, Sql

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


@pytest.mark.process
def test_who_has_a_certificate_comes_in_by_it(tmp_path: Path) -> None:
    server = make_certificate(tmp_path)
    mine = make_certificate(tmp_path, "admin", server)
    up = UpProcess(
        tmp_path,
        "listeners.https=127.0.0.1:0",
        "listeners.kafka_tls=127.0.0.1:0",
        f"tls.certificate={server.file}",
        f"tls.key={server.key_file}",
        f"tls.client_ca={server.file}",
    ).start()
    try:
        access = Access(f"https://{up.addresses['https']}", None, str(server.file), 0.0)
        with pytest.raises(NetworkError):
            WeirCluster.find(access)
        place = WeirCluster.find(
            Access(access.url, None, str(server.file), 5.0, str(mine.file), str(mine.key_file))
        )
        assert place.options["kafka.ssl.certificate.location"] == str(mine.file)
        with Cluster(connection(place.options)) as cluster:
            assert cluster.topics() == []
    finally:
        up.close()


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
    ):
        sql.topics.create(name=name)
        ask_v2(sql.place.access, "POST", f"schemas/public/default/{name}/schema", body)
    for statement, query, row in (
        ("sqlw_inline SELECT 1 AS id, 2.5 AS amount, named_struct('shop', 7) AS key", "__key.shop, id", (7, 1)),
        ("sqlw_numbers SELECT 21.5 AS value, -7 AS key", "__key, value", (-7, 21.5)),
        ("sqlw_texts SELECT 'x' AS value, named_struct('shop', 8) AS key", "__key.shop, value", (8, "x")),
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


@pytest.mark.process
@pytest.mark.xdist_group("spark")
def test_what_is_inserted_is_read_by_pulsars_own_client_with_its_schema(sql: Sql) -> None:
    client = pulsar.Client(sql.topics.up.pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        for kind in (AvroSchema, JsonSchema):
            name = f"sqlp_{kind.__name__.lower()}"
            consumer = client.subscribe(name, "s", schema=kind(Visit))
            sql.do(
                f"INSERT INTO {name} SELECT 'ann' AS who, map('x', 1) AS marks,"
                " array(named_struct('city', 'Rome', 'street', 'Via')) AS places"
            )
            found = consumer.receive(60_000).value()
            assert (found.who, found.marks) == ("ann", {"x": 1})
            assert (found.places[0].city, found.places[0].street) == ("Rome", "Via")
    finally:
        client.close()
