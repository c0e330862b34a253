"""Replay by query, whole: picked by Spark out of lake, topic and dead letters, and delivered again."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from confluent_kafka import Consumer, TopicPartition
from pulsar.schema import AvroSchema, Integer, Record, String
from pyspark.sql import SparkSession

from weir.client.admin import ask_v2
from weir.client.kafka.cluster import Described, Partition
from weir.client.replays import all_replays
from weir.client.schemas import kafka_name
from weir.model.definitions import ReplayState
from weir.model.errors import SqlError
from weir.model.topics import TopicName
from weir.spark.lake.catalog import namespace_lake, turn_off
from weir.spark.lake.export import LocalJobs
from weir.spark.lake.history import find_topic_history
from weir.spark.options import parse
from weir.spark.replay.selection import selection_topic
from weir.spark.source.planning import Range
from weir.spark.source.reading import value_schemas
from weir.spark.sql.results import Done, Rows
from weir.wire.kafka.records import Record as KafkaRecord
from weir.wire.kafka.records import build_batch

from .conftest import Reads, Topics
from .lake_kit import Lake
from .sql_session import Sql, make_orders, patiently, stored

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]


@pytest.fixture(scope="module")
def client(up) -> Iterator[pulsar.Client]:
    found = pulsar.Client(up.pulsar_url)
    yield found
    found.close()


def _name(what: str) -> str:
    return f"{what}_{time.time_ns()}"


def _drain(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    found = []
    for _ in range(count):
        found.append(consumer.receive(timeout_millis=60_000))
        consumer.acknowledge(found[-1])
    return found


def _ids(messages: list[pulsar.Message]) -> list[int]:
    return [json.loads(message.data())["id"] for message in messages]


def _is_empty(topics: Topics, topic: str, subscription: str) -> bool:
    told = ask_v2(_access(topics), "GET", f"persistent/public/default/{topic}/partitioned-stats")
    return told["subscriptions"][subscription]["msgBacklog"] == 0


def _access(topics: Topics):
    from weir.client.admin import Access

    return Access(topics.up.http_url, patience_s=5.0)


def test_a_query_picks_messages_out_of_lake_and_topic_and_one_subscription_alone_gets_them_again(
    topics: Topics, sql: Sql, client: pulsar.Client, tmp_path: Path
) -> None:
    topic = _name("replayed")
    make_orders(topics, topic, 0, 6)
    lake = Lake(topics, tmp_path, LocalJobs())
    name = lake.on(topic)
    billing = client.subscribe(topic, "billing", initial_position=pulsar.InitialPosition.Earliest)
    other = client.subscribe(topic, "other", initial_position=pulsar.InitialPosition.Earliest)
    try:
        found = namespace_lake(lake.place.access, name.namespace).of(name)
        assert found is not None
        lake.definition = found
        lake.export(topic)
        assert _ids(_drain(billing, 6)) == _ids(_drain(other, 6)) == list(range(6))
        topics.trim(topic, 5)
        make_orders(topics, topic, 6, 3)
        _drain(billing, 3)
        _drain(other, 3)

        done = sql.do(f"REPLAY {topic} WHERE id % 2 = 1 INTO billing")
        assert isinstance(done, Done)
        assert done.fields["messages"] == 4
        again = _drain(billing, 4)
        assert _ids(again) == [1, 3, 5, 7]
        properties = again[1].properties()
        assert properties["weir-replay-topic"] == str(name)
        assert (properties["weir-replay-partition"], properties["weir-replay-offset"]) == ("0", "3")
        assert properties["weir-replay-id"] == done.fields["replay"]
        assert again[1].partition_key() == json.dumps({"id": 3, "customer": "c1", "amount": 1.5})
        assert _is_empty(topics, topic, "other")

        (kept,) = all_replays(sql.place.access, name)
        assert (kept.state, kept.selected, kept.delivered) == (ReplayState.DONE, (4,), (4,))
        assert (kept.where, kept.subscription) == ("id % 2 = 1", "billing")
        shown = sql.do("SHOW REPLAYS")
        assert isinstance(shown, Rows)
        assert done.fields["replay"] in [row[0] for row in shown.rows]
        assert str(selection_topic(kept).local) not in topics.cluster().topics()
    finally:
        turn_off(lake.place.access, name.namespace, name.local)
        billing.close()
        other.close()


@pytest.mark.parametrize("where", ["as Weir names it", "as the policy says"])
def test_dead_letters_are_picked_also_when_their_topic_has_trimmed_them(
    topics: Topics, sql: Sql, client: pulsar.Client, where: str
) -> None:
    topic, target = _name("dying"), topics.create(name=_name("to"))
    for number in range(3):  # each a batch of its own
        make_orders(topics, topic, number, 1)
    policy = {"weir.retry.schedule": "1ms", "weir.retry.max-deliveries": "1"}
    letters = f"{topic}-billing-DLQ"
    if where == "as the policy says":
        letters = policy["weir.retry.dead-letter-topic"] = f"%DLQ%{_name('g')}"  # as RocketMQ's are called
    billing = client.subscribe(
        topic,
        "billing",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        properties=policy,
        negative_ack_redelivery_delay_ms=1,
    )
    try:
        for _ in range(3):
            message = billing.receive(timeout_millis=60_000)
            if json.loads(message.data())["id"] == 1:
                billing.negative_acknowledge(message)
            else:
                billing.acknowledge(message)
        _wait_dead(topics, letters, 1)
        topics.trim(topic, 3)
        with pytest.raises(SqlError):
            sql.do(f"REPLAY {topic} WHERE no_such_column = 1 INTO billing")
        for into in ("billing", f"TOPIC {target}"):
            asked = f"REPLAY {topic} WHERE __dead_reason = 'delivery_limit' AND id = 1 INTO {into} DRY RUN"
            assert sql.rows(asked) == [(0, 1)]
        # The times are the messages' own, not when they were stored or died.
        sql.do(f"REPLAY {topic} TO '2024-01-01' WHERE id = 1 INTO SUBSCRIPTION billing")
        again = billing.receive(timeout_millis=60_000)
        assert _ids([again]) == [1]
        assert again.event_timestamp() == 1_700_000_001_000
        assert again.properties()["weir-replay-offset"] == "1"
        assert not any(name.startswith("weir-dead") for name in again.properties())
        # A copy that dies, too, is no second message.
        billing.negative_acknowledge(again)
        _wait_dead(topics, letters, 2)
        assert sql.rows(f"REPLAY {topic} WHERE id = 1 INTO TOPIC {target} DRY RUN") == [(0, 1)]
    finally:
        billing.close()


def _wait_dead(topics: Topics, letters: str, count: int) -> None:
    name = kafka_name(TopicName.parse(letters))

    def is_there() -> bool:
        found = topics.cluster().describe([name])[name]
        return isinstance(found, Described) and len(stored(topics.servers, name)) == count

    patiently(is_there)


def test_a_message_that_died_for_two_reasons_is_found_by_each_and_is_one(topics: Topics, sql: Sql) -> None:
    topic, target = topics.create(name=_name("twice")), topics.create(name=_name("to"))
    topics.fill(topic, ["alive", "dead"])
    for subscription, reason in (("a", b"rejected"), ("b", b"delivery_limit")):
        told = {
            "reason": reason,
            "topic": f"persistent://public/default/{topic}".encode(),
            "partition": b"0",
            "offset": b"1",
            "subscription": subscription.encode(),
        }
        headers = [(f"weir-dead-{name}".encode(), value) for name, value in told.items()]
        letters = topics.create(name=f"{topic}-{subscription}-DLQ")
        topics.send(letters, build_batch([KafkaRecord(0, 1_700_000_000_001, b"dead", b"dead", headers)]))
    for where in ("__dead_reason = 'rejected'", "__dead_reason = 'delivery_limit'", "value = 'dead'"):
        assert sql.rows(f"REPLAY {topic} WHERE {where} INTO TOPIC {target} DRY RUN") == [(0, 1)]
    assert sql.rows(f"REPLAY {topic} INTO TOPIC {target} DRY RUN") == [(0, 2)]


@pytest.mark.parametrize(
    ("kind", "schema", "value"),
    [
        ("STRING", "", "text"),
        (
            "JSON",
            json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}),
            '{"n": 7}',
        ),
    ],
)
def test_what_only_the_table_has_is_as_it_was_sent_though_the_topic_had_no_schema_then(
    topics: Topics, sql: Sql, spark: SparkSession, read: Reads, tmp_path: Path, kind: str, schema: str, value: str
) -> None:
    topic, target = topics.create(name=_name("typed_later")), topics.create(name=_name("to"))
    lake = Lake(topics, tmp_path, LocalJobs())
    name = lake.on_for_others(topic)
    try:
        topics.fill(topic, ["raw"])
        lake.export(topic)
        body = {"type": kind, "schema": schema, "properties": {}}
        ask_v2(_access(topics), "POST", f"schemas/public/default/{topic}/schema", body)
        topics.fill(topic, [value])
        rows = sql.rows(f"SELECT * FROM {topic} ORDER BY __offset")
        given = {**lake.place.options, "subscribe": topic, "valueFormat": "schema"}
        options = parse(given, streaming=False)
        history = find_topic_history(options, topic)  # by which streams read it
        assert history is not None
        (batch,) = history.read(Range(Partition(topic, 0), 0, 1), options, value_schemas(options))
        assert batch.column("value").to_pylist() == [None]
        lake.export(topic)
        assert sql.rows(f"SELECT * FROM {topic} ORDER BY __offset") == rows, "before and after"
        topics.trim(topic, 2)
        sql.do(f"REPLAY {topic} INTO TOPIC {target}")
        assert [sent for _, sent in stored(topics.servers, target)] == ["raw", value]
        spark.conf.unset("spark.sql.parquet.fieldId.read.enabled")  # as in sessions that users build
        assert read.values(topic) == ["raw", value]
    finally:
        turn_off(lake.place.access, name.namespace, name.local)


#: Two versions of one schema.
OLD = type("Order", (Record,), {"id": Integer()})
NEW = type("Order", (Record,), {"id": Integer(), "note": String(default=None, required_default=True)})


def test_messages_of_older_versions_of_a_schema_say_so_again_and_in_another_topic_no_version_of_its(
    topics: Topics, sql: Sql, client: pulsar.Client
) -> None:
    topic, target = _name("versions"), topics.create(name=_name("to"))
    billing = client.subscribe(topic, "billing")
    for kind, ids in ((OLD, (0, 1)), (NEW, (2,)), (OLD, (3,))):
        producer = client.create_producer(topic, schema=AvroSchema(kind))
        for number in ids:
            producer.send(kind(id=number))
        producer.close()
    try:
        first = _drain(billing, 4)
        assert len({message.schema_version() for message in first}) == 2
        sql.do(f"REPLAY {topic} INTO SUBSCRIPTION billing")
        again = _drain(billing, 4)
        for was, message in zip(first, again, strict=True):
            assert message.data() == was.data()
            assert message.schema_version() == was.schema_version()
            assert "weir-schema-version" not in message.properties()
        sql.do(f"REPLAY {topic} INTO TOPIC {target}")
        assert _headers_of(topics, target, 4) == [{} for _ in first]
    finally:
        billing.close()


def _headers_of(topics: Topics, topic: str, count: int) -> list[dict[str, object]]:
    """Without what a replay says."""
    consumer = Consumer({"bootstrap.servers": topics.servers, "group.id": "none", "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = [consumer.poll(60) for _ in range(count)]
        told = [dict(message.headers() or []) for message in found if message is not None]
        return [{name: one[name] for name in one if not name.startswith("weir-replay")} for one in told]
    finally:
        consumer.close()


def test_a_message_that_was_delayed_once_is_not_delayed_again(topics: Topics, sql: Sql) -> None:
    topic, target = topics.create(name=_name("delayed")), topics.create(name=_name("to"))
    wishes = [(b"weir-deliver-after", b"1"), (b"weir-delay-id", b"mine"), (b"a", b"b")]
    topics.send(topic, build_batch([KafkaRecord(0, 1_700_000_000_000, b"k", b"v", wishes)]))
    patiently(lambda: stored(topics.servers, topic))
    done = sql.do(f"REPLAY {topic} INTO TOPIC {target}")
    assert isinstance(done, Done)
    assert done.fields["messages"] == 1
    assert stored(topics.servers, target) == [("k", "v")]
    assert _headers_of(topics, target, 1) == [{"a": b"b"}]
