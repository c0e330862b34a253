"""Typed columns on real Spark, whichever protocol wrote the values."""

import json

import pulsar
import pytest
from confluent_kafka import Producer
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String
from pyspark.errors import PySparkException

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]


class Order(Record):
    item = String()
    amount = Integer()


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema], ids=["avro", "json"])
def test_values_of_pulsars_and_kafkas_clients_are_typed_by_the_registry(up, topics, read, kind) -> None:
    topic = topics.create()
    schema = kind(Order)
    client = pulsar.Client(up.pulsar_url)
    producer = client.create_producer(topic, schema=schema)
    producer.send(Order(item="tea", amount=3))
    client.close()
    kafka = Producer({"bootstrap.servers": topics.servers})
    kafka.produce(topic, schema.encode(Order(item="milk", amount=4)))
    kafka.produce(topic, None, key="gone")
    assert kafka.flush(30) == 0
    found = read(topic, valueFormat="schema", adminUrl=up.http_url)
    assert dict(found.select("value.*").dtypes) == {"item": "string", "amount": "int"}
    rows = found.orderBy("offset").select("value.*").collect()
    assert sorted(((row["item"], row.amount) for row in rows), key=str) == [("milk", 4), ("tea", 3), (None, None)]
    assert found.where("value is null").count() == 1


def test_a_topic_without_a_schema_is_named(up, topics, read) -> None:
    topic = topics.create()
    topics.fill(topic, [json.dumps({"a": 1})])
    with pytest.raises(PySparkException, match=f"{topic}.*schema"):
        read(topic, valueFormat="schema", adminUrl=up.http_url).count()
