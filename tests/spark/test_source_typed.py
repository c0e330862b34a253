"""Typed columns on real Spark, whichever protocol wrote the values."""

import json
from base64 import b64encode
from struct import pack
from typing import Any
from urllib.request import Request, urlopen

import pulsar
import pytest
from confluent_kafka import Producer
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.type_pb2 import Field
from pulsar.schema import (
    Array,
    AvroSchema,
    Integer,
    JsonSchema,
    Map,
    ProtobufNativeSchema,
    Record,
    String,
)
from pyspark.errors import PySparkException

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]


class Address(Record):
    street = String()


class Order(Record):
    item = String()
    amount = Integer()
    address = Address()
    tags = Array(String())
    counts = Map(Integer())


def send(up, topic: str, schema: Any, *values: Any) -> None:
    """By Pulsar's client."""
    client = pulsar.Client(up.pulsar_url)
    producer = client.create_producer(topic, schema=schema)
    for value in values:
        producer.send(value)
    client.close()


def produce(topics, topic: str, *values: bytes | None) -> None:
    """By Kafka's client."""
    kafka = Producer({"bootstrap.servers": topics.servers})
    for value in values:
        kafka.produce(topic, value, key="k")
    assert kafka.flush(30) == 0


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema], ids=["avro", "json"])
def test_nested_values_of_pulsars_and_kafkas_clients_are_typed_by_the_registry(up, topics, read, kind) -> None:
    topic, schema = topics.create(), kind(Order)
    tea = Order(item="tea", amount=3, address=Address(street="Main"), tags=["a", "b"], counts={"x": 1})
    send(up, topic, schema, tea)
    produce(topics, topic, schema.encode(Order(item="milk", amount=4)), None)
    found = read(topic, valueFormat="schema", adminUrl=up.http_url)
    assert dict(found.select("value.*").dtypes) == {
        "item": "string",
        "amount": "int",
        "address": "struct<street:string>",
        "tags": "array<string>",
        "counts": "map<string,int>",
    }
    rows = found.orderBy("offset").selectExpr("value.*", "value is null gone").collect()
    assert [(row["item"], row.amount, row.gone) for row in rows] == [
        ("tea", 3, False),
        ("milk", 4, False),
        (None, None, True),
    ]
    assert (rows[0].address.street, rows[0].tags, rows[0].counts) == ("Main", ["a", "b"], {"x": 1})
    assert (rows[1].address.street, rows[1].tags, rows[1].counts) == (None, None, None)


def test_protobuf_messages_are_typed_by_their_descriptor(up, topics, read) -> None:
    flat, nested = topics.create(), topics.create()
    send(up, flat, ProtobufNativeSchema(Timestamp), Timestamp(seconds=5, nanos=6))
    produce(topics, flat, Timestamp(seconds=-1).SerializeToString(), b"\xff")
    found = read(flat, valueFormat="schema", adminUrl=up.http_url, mode="PERMISSIVE")
    rows = found.orderBy("offset").selectExpr("value.*").collect()
    assert [(row.seconds, row.nanos) for row in rows] == [(5, 6), (-1, 0), (None, None)]
    field = Field(kind=Field.TYPE_INT32, name="n")
    field.options.add(name="packed").value.type_url = "x"
    send(up, nested, ProtobufNativeSchema(Field), field)
    (row,) = read(nested, valueFormat="schema", adminUrl=up.http_url).selectExpr("value.*").collect()
    assert (row.kind, row.name, row.options[0].value.type_url) == ("TYPE_INT32", "n", "x")


def test_messages_of_an_older_schema_are_read_through_the_latest(up, topics, read) -> None:
    class Old(Record):
        item = String()
        gone = Integer(default=0, required_default=True)

    class New(Record):
        item = String()
        note = String(default="none", required_default=True)

    topic = topics.create()
    old, new = AvroSchema(Old), AvroSchema(New)
    send(up, topic, old, Old(item="tea", gone=1))
    send(up, topic, new, New(item="milk", note="new"))
    send(up, topic, old, Old(item="salt", gone=2))
    produce(topics, topic, new.encode(New(item="rice", note="kafka")))
    rows = read(topic, valueFormat="schema", adminUrl=up.http_url).orderBy("offset").select("value.*").collect()
    assert [(row["item"], row.note) for row in rows] == [
        ("tea", "none"),
        ("milk", "new"),
        ("salt", "none"),
        ("rice", "kafka"),
    ]


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_keys_and_values_of_a_key_value_schema_are_typed(up, topics, read, encoding) -> None:
    topic, order = topics.create(), AvroSchema(Order)
    sizes = [pack(">i", 0), pack(">i", len(order.schema_info().schema())), order.schema_info().schema().encode()]
    uploaded = {
        "type": "KEY_VALUE",
        "schema": b64encode(b"".join(sizes)).decode(),
        "properties": {
            "key.schema.type": "INT32",
            "value.schema.type": "AVRO",
            "kv.encoding.type": encoding,
        },
    }
    url = f"{up.http_url}/admin/v2/schemas/public/default/{topic}/schema"
    asked = Request(url, json.dumps(uploaded).encode(), {"Content-Type": "application/json"}, method="POST")
    with urlopen(asked, timeout=30) as answer:
        assert answer.status == 200
    key, value = pack(">i", 7), order.encode(Order(item="tea", amount=3))
    kafka = Producer({"bootstrap.servers": topics.servers})
    if encoding == "INLINE":
        kafka.produce(topic, pack(">i", 4) + key + pack(">i", len(value)) + value)
    else:
        kafka.produce(topic, value, key=key)
    assert kafka.flush(30) == 0
    (row,) = read(topic, valueFormat="schema", adminUrl=up.http_url).select("key", "value.item").collect()
    assert (row.key, row["item"]) == (7, "tea")


def test_a_topic_without_a_schema_is_named(up, topics, read) -> None:
    topic = topics.create()
    topics.fill(topic, [json.dumps({"a": 1})])
    with pytest.raises(PySparkException, match=f"{topic}.*schema"):
        read(topic, valueFormat="schema", adminUrl=up.http_url).count()
