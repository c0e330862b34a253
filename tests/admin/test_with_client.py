"""What the admin API does is what the official client sees, and the other way round."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest

TIMEOUT_MS = 60_000
EARLIEST = {"ledgerId": -1, "entryId": -1}


@pytest.fixture
def path(unique: str) -> str:
    return f"persistent/public/default/{unique}"


@pytest.fixture
def topic(unique: str) -> str:
    return f"persistent://public/default/{unique}"


@pytest.fixture
def http_client(weir: Any, tmp_path: Path) -> Iterator[pulsar.Client]:
    """One that looks topics up over HTTP."""
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(tmp_path / "http.log"))
    client = pulsar.Client(weir.http, operation_timeout_seconds=60, logger=quiet)
    yield client
    with suppress(pulsar.AlreadyClosed):
        client.close()


def receive(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        message = consumer.receive(TIMEOUT_MS)
        consumer.acknowledge(message)
        found.append(message.data())
    return found


def backlog(weir: Any, path: str, subscription: str = "s") -> int:
    return weir.do("GET", f"{path}/stats")["subscriptions"][subscription]["msgBacklog"]


def send(client: pulsar.Client, topic: str, *payloads: bytes, **options: Any) -> list[pulsar.MessageId]:
    producer = client.create_producer(topic, **options)
    ids = [producer.send(payload) for payload in payloads]
    producer.close()
    return ids


# --- topics -------------------------------------------------------------------------------------------------


def test_a_client_finds_the_partitions_that_were_made(weir, client, path: str, topic: str) -> None:
    weir.do("PUT", f"{path}/partitions", 3)
    assert len(client.get_topic_partitions(topic)) == 3
    weir.do("POST", f"{path}/partitions", 5)
    assert len(client.get_topic_partitions(topic)) == 5
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
    )
    for at in range(10):
        producer.send(b"%d" % at)
    stats = weir.do("GET", f"{path}/partitioned-stats")
    assert (stats["metadata"]["partitions"], len(stats["partitions"]), stats["msgInCounter"]) == (5, 5, 10)
    assert stats["subscriptions"]["s"]["msgBacklog"] == 10
    assert not weir.do("GET", f"{path}/partitioned-stats?perPartition=false")["partitions"]
    assert sorted(receive(consumer, 10)) == [b"%d" % at for at in range(10)]


def test_a_client_can_look_up_over_http(weir, http_client, path: str, topic: str) -> None:
    weir.do("PUT", f"{path}/partitions", 2)
    consumer = http_client.subscribe(topic, "s")
    send(http_client, topic, b"a", b"b")
    assert sorted(receive(consumer, 2)) == [b"a", b"b"]


def test_a_client_can_subscribe_to_a_pattern_over_http(weir, http_client, unique: str) -> None:
    weir.do("PUT", f"persistent/public/default/{unique}-1")
    weir.do("PUT", f"persistent/public/default/{unique}-2")
    import re

    consumer = http_client.subscribe(re.compile(f"persistent://public/default/{unique}-.*"), "s")
    send(http_client, f"persistent://public/default/{unique}-1", b"1")
    send(http_client, f"persistent://public/default/{unique}-2", b"2")
    assert sorted(receive(consumer, 2)) == [b"1", b"2"]


def test_stats_name_those_who_are_connected(weir, client, path: str, topic: str) -> None:
    producer = client.create_producer(topic, "me", properties={"k": "v"})
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        consumer_name="you",
        initial_position=pulsar.InitialPosition.Earliest,
    )
    producer.send(b"x" * 100)
    consumer.receive(TIMEOUT_MS)
    stats = weir.do("GET", f"{path}/stats")
    assert [(p["producerName"], p["accessMode"], p["metadata"]) for p in stats["publishers"]] == [
        ("me", "Shared", {"k": "v"})
    ]
    subscription = stats["subscriptions"]["s"]
    assert (subscription["type"], subscription["msgBacklog"], subscription["unackedMessages"]) == ("Shared", 1, 1)
    assert [c["consumerName"] for c in subscription["consumers"]] == ["you"]
    assert (stats["msgInCounter"], stats["msgOutCounter"]) == (1, 1)
    internal = weir.do("GET", f"{path}/internalStats")
    assert (internal["numberOfEntries"], len(internal["ledgers"]), list(internal["cursors"])) == (1, 1, ["s"])
    passing = client.create_producer(topic.replace("persistent", "non-persistent"))
    passing.send(b"y")
    assert weir.do("GET", f"non-{path}/stats")["msgInCounter"] == 1


def test_a_topic_in_use_is_deleted_only_by_force(weir, client, path: str, topic: str) -> None:
    client.subscribe(topic, "s")
    assert weir.ask("DELETE", path).status == 412
    assert weir.ask("DELETE", f"{path}/subscription/s").status == 412
    weir.do("DELETE", f"{path}?force=true")


def test_a_terminated_topic_takes_no_more(weir, client, path: str, topic: str) -> None:
    last = send(client, topic, b"a", b"b")[-1]
    told = weir.do("POST", f"{path}/terminate")
    assert (told["ledgerId"], told["entryId"]) == (last.ledger_id(), last.entry_id())
    with pytest.raises(pulsar.PulsarException):
        send(client, topic, b"c")
    assert weir.do("GET", f"{path}/internalStats")["state"] == "Terminated"


def test_a_truncated_topic_has_nothing_left(weir, client, path: str, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    send(client, topic, b"a", b"b")
    weir.do("DELETE", f"{path}/truncate")
    assert backlog(weir, path) == 0
    send(client, topic, b"c")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert reader.read_next(TIMEOUT_MS).data() == b"c"
    consumer.close()


def test_clients_come_back_to_an_unloaded_topic(weir, client, path: str, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"a")
    weir.do("PUT", f"{path}/unload")
    producer.send(b"b")
    assert set(receive(consumer, 2)) == {b"a", b"b"}


def test_a_compacted_topic_keeps_the_last_of_each_key(weir, client, path: str, topic: str) -> None:
    producer = client.create_producer(topic)
    for value in (b"1", b"2", b"3"):
        producer.send(value, partition_key="k")
    weir.do("PUT", f"{path}/compaction")
    deadline = time.monotonic() + 60
    while weir.do("GET", f"{path}/compaction")["status"] == "RUNNING" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert weir.do("GET", f"{path}/compaction")["status"] == "SUCCESS"
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    assert reader.read_next(TIMEOUT_MS).data() == b"3"


# --- policies and grants ------------------------------------------------------------------------------------


def test_a_policy_of_a_topic_holds_at_once_for_those_who_come(weir, client, path: str, topic: str) -> None:
    weir.do("PUT", path)
    weir.do("POST", f"{path}/maxProducers", 1)
    client.create_producer(topic)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)
    weir.do("DELETE", f"{path}/maxProducers")
    client.create_producer(topic)


def test_topics_come_to_be_as_their_namespace_says(weir, client, unique: str) -> None:
    weir.do("PUT", f"namespaces/public/{unique}")
    auto = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    weir.do("POST", f"namespaces/public/{unique}/autoTopicCreation", auto)
    client.create_producer(f"public/{unique}/made")
    assert weir.do("GET", f"persistent/public/{unique}/made/partitions")["partitions"] == 3
    weir.do("POST", f"namespaces/public/{unique}/autoTopicCreation", {"allowAutoTopicCreation": False})
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(f"public/{unique}/other")


# --- subscriptions ------------------------------------------------------------------------------------------


def test_a_subscription_waits_for_its_first_consumer(weir, client, path: str, topic: str) -> None:
    ids = send(client, topic, b"a", b"b", b"c")
    second = {"ledgerId": ids[1].ledger_id(), "entryId": ids[1].entry_id()}
    weir.do("PUT", f"{path}/subscription/all", EARLIEST)
    weir.do("PUT", f"{path}/subscription/from", second)
    weir.do("PUT", f"{path}/subscription/after", second | {"isExcluded": True})
    weir.do("PUT", f"{path}/subscription/end")
    counts = {name: backlog(weir, path, name) for name in ("all", "from", "after", "end")}
    assert counts == {"all": 3, "from": 2, "after": 1, "end": 0}
    assert receive(client.subscribe(topic, "after"), 1) == [b"c"]


def test_skip_expire_and_reset_move_a_subscription(weir, client, path: str, topic: str) -> None:
    weir.do("PUT", f"{path}/subscription/s")
    ids = send(client, topic, *(b"%d" % at for at in range(10)))
    weir.do("POST", f"{path}/subscription/s/skip/3")
    assert backlog(weir, path) == 7
    fifth = {"ledgerId": ids[4].ledger_id(), "entryId": ids[4].entry_id()}
    weir.do("POST", f"{path}/subscription/s/expireMessages", fifth)
    assert backlog(weir, path) == 5
    weir.do("POST", f"{path}/subscription/s/expireMessages/3600")
    assert backlog(weir, path) == 5
    weir.do("POST", f"{path}/subscription/s/expireMessages/0")
    assert backlog(weir, path) == 0
    weir.do("POST", f"{path}/subscription/s/resetcursor", fifth)
    assert backlog(weir, path) == 6
    weir.do("POST", f"{path}/subscription/s/resetcursor", fifth | {"isExcluded": True})
    assert backlog(weir, path) == 5
    weir.do("POST", f"{path}/subscription/s/resetcursor/0")
    assert backlog(weir, path) == 10
    assert receive(client.subscribe(topic, "s"), 1) == [b"0"]
    weir.do("POST", f"{path}/subscription/s/skip_all")
    assert backlog(weir, path) == 0


def test_a_call_on_a_partitioned_topic_is_one_on_each_partition(weir, client, path: str, topic: str) -> None:
    weir.do("PUT", f"{path}/partitions", 2)
    weir.do("PUT", f"{path}/subscription/s")
    for at in range(2):
        send(client, f"{topic}-partition-{at}", b"x", b"y")
    assert weir.do("GET", f"{path}/partitioned-stats")["subscriptions"]["s"]["msgBacklog"] == 4
    weir.do("POST", f"{path}/subscription/s/skip_all")
    assert weir.do("GET", f"{path}/partitioned-stats")["subscriptions"]["s"]["msgBacklog"] == 0
    assert weir.ask("PUT", f"{path}/subscription/s").status == 409
    weir.do("DELETE", f"{path}/subscription/s")
    assert weir.do("GET", f"{path}/subscriptions") == []


# --- messages -----------------------------------------------------------------------------------------------


def test_a_peek_shows_a_message_and_leaves_it_there(weir, client, path: str, topic: str) -> None:
    weir.do("PUT", f"{path}/subscription/s")
    producer = client.create_producer(
        topic, "me", compression_type=pulsar.CompressionType.ZLib, batching_enabled=False
    )
    producer.send(
        b"first" * 100, partition_key="k", properties={"colour": "blue", "näme": "ä"}, event_timestamp=1000
    )
    producer.send(b"second")
    for _ in range(2):
        answer = weir.ask("GET", f"{path}/subscription/s/position/1")
        assert (answer.status, answer.body) == (200, b"first" * 100)
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["x-pulsar-partition-key"] == "k"
        assert answer.headers["x-pulsar-producer-name"] == "me"
        assert answer.headers["x-pulsar-property-colour"] == "blue"
        assert answer.headers["x-pulsar-event-time"].startswith("1970-01-01T00:00:01.000")
        assert json.loads(answer.headers["x-pulsar-property"]) == {"colour": "blue", "näme": "ä"}
        assert "x-pulsar-num-batch-message" not in answer.headers
    assert weir.ask("GET", f"{path}/subscription/s/position/2").body == b"second"
    assert weir.ask("GET", f"{path}/subscription/s/position/3").status == 404
    assert weir.ask("GET", f"{path}/examinemessage?initialPosition=earliest").body == b"first" * 100
    assert weir.ask("GET", f"{path}/examinemessage").body == b"second"
    assert backlog(weir, path) == 2


def test_a_peek_counts_batches_and_leaves_out_what_is_acknowledged(weir, client, path: str, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=10_000)
    for number in range(3):
        for at in range(2):
            producer.send_async(b"%d.%d" % (number, at), lambda *_: None)
        producer.flush()
    assert weir.ask("GET", f"{path}/subscription/s/position/2").headers["x-pulsar-num-batch-message"] == "2"
    for _ in range(6):
        message = consumer.receive(TIMEOUT_MS)
        if message.data().startswith(b"1"):
            consumer.acknowledge(message)
    consumer.close()
    assert b"2.0" in weir.ask("GET", f"{path}/subscription/s/position/2").body
    assert weir.ask("GET", f"{path}/subscription/s/position/3").status == 404


def test_ids_are_those_that_the_client_got(weir, client, path: str, topic: str) -> None:
    first, second = send(client, topic, b"a", b"b")
    last = weir.do("GET", f"{path}/lastMessageId")
    assert (last["ledgerId"], last["entryId"]) == (second.ledger_id(), second.entry_id())
    found = weir.do("GET", f"{path}/messageid/0")
    assert (found["ledgerId"], found["entryId"]) == (first.ledger_id(), first.entry_id())
    answer = weir.ask("GET", f"{path}/ledger/{second.ledger_id()}/entry/{second.entry_id()}")
    assert (answer.body, answer.headers["x-pulsar-message-id"]) == (
        b"b",
        f"{second.ledger_id()}:{second.entry_id()}",
    )
    size = weir.do("PUT", f"{path}/backlogSize", EARLIEST)
    assert (
        size
        > weir.do("PUT", f"{path}/backlogSize", {"ledgerId": last["ledgerId"], "entryId": last["entryId"]})
        > 0
    )


def test_a_prepared_message_is_seen_by_a_consumer_once_it_is_committed(
    weir, client, unique: str, topic: str
) -> None:
    half = f"/admin/weir/v1/half/persistent/public/default/{unique}"
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    body = {"group": "shop", "payload": "prepared", "key": "k", "properties": {"a": "b"}, "recoveryMs": 3_600_000}
    first, second = (weir.do("POST", half, body)["id"] for _ in range(2))
    producer.send(b"whole")
    message = consumer.receive(10_000)
    assert message.data() == b"whole"
    consumer.acknowledge(message)
    page = weir.do("GET", f"{half}?limit=1&group=shop")
    rest = weir.do("GET", f"{half}?limit=1&group=shop&after={page['next']}")
    assert [item["id"] for item in (*page["half"], *rest["half"])] == [first, second]
    assert rest["next"] is None
    shown = weir.do("GET", f"{half}/{first}")
    assert (shown["half"]["group"], shown["content"][0]["headers"]) == ("shop", [["a", "Yg=="]])
    assert not weir.do("POST", f"{half}/{first}/rollback")["again"]
    assert weir.do("POST", f"{half}/{second}/commit") == {"decision": "commit", "offset": 1, "again": False}
    message = consumer.receive(10_000)
    assert (message.data(), message.partition_key(), message.properties()) == (b"prepared", "k", {"a": "b"})
    assert weir.do("POST", f"{half}/{second}/commit")["again"]
    assert weir.ask("POST", f"{half}/{second}/rollback").status == 409
    assert weir.ask("POST", f"{half}/{first}/commit").status == 409
    counts = weir.do("GET", f"{half}/count")
    assert (counts["waiting"], counts["committed"], counts["rolledBack"]) == (0, 1, 1)


def test_held_messages_can_be_listed_cancelled_and_released(weir, client, unique: str, topic: str) -> None:
    held = f"/admin/weir/v1/held/persistent/public/default/{unique}"
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    assert weir.do("GET", held) == {"held": [], "next": None}
    for hours in (3, 1, 2):
        producer.send(b"in %d" % hours, deliver_after=timedelta(hours=hours))
    page = weir.do("GET", f"{held}?limit=2")
    rest = weir.do("GET", f"{held}?limit=2&after={page['next']}")
    listed = [*page["held"], *rest["held"]]
    assert (len(listed), rest["next"]) == (3, None)
    assert [item["due"] for item in listed] == sorted(item["due"] for item in listed)
    weir.do("DELETE", f"{held}/{listed[0]['id']}")
    assert weir.ask("DELETE", f"{held}/{listed[0]['id']}").status == 404
    weir.do("POST", f"{held}/{listed[1]['id']}/release")
    assert receive(consumer, 1) == [b"in 2"]
    assert weir.do("GET", f"{held}/count") == {"batches": 1, "messages": 1}


# --- schemas ------------------------------------------------------------------------------------------------


class Person(pulsar.schema.Record):
    name = pulsar.schema.String()
    age = pulsar.schema.Integer()


class Stranger(pulsar.schema.Record):
    name = pulsar.schema.Integer(required=True)


def test_a_schema_of_the_client_is_the_one_of_the_registry(weir, client, unique: str, topic: str) -> None:
    at = f"schemas/public/default/{unique}"
    client.create_producer(topic, schema=pulsar.schema.AvroSchema(Person))
    found = weir.do("GET", f"{at}/schema")
    assert (found["version"], found["type"], json.loads(found["data"])["name"]) == (0, "AVRO", "Person")
    same = {"type": "AVRO", "schema": found["data"], "properties": {}}
    assert weir.do("POST", f"{at}/version", same) == {"version": 0}
    assert weir.do("POST", f"{at}/compatibility", same)["compatibility"]
    other = {"type": "AVRO", "schema": json.dumps(pulsar.schema.AvroSchema(Stranger).schema_info().schema())}
    other["schema"] = pulsar.schema.AvroSchema(Stranger).schema_info().schema()
    assert not weir.do("POST", f"{at}/compatibility", other)["compatibility"]
    weir.do("PUT", f"persistent/public/default/{unique}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    assert weir.do("POST", f"{at}/schema", other) == {"version": 1}
    assert [one["version"] for one in weir.do("GET", f"{at}/schemas")["getSchemaResponses"]] == [0, 1]


def test_a_client_must_keep_to_the_schema_that_was_posted(weir, client, unique: str, topic: str) -> None:
    text = pulsar.schema.AvroSchema(Person).schema_info().schema()
    weir.do("POST", f"schemas/public/default/{unique}/schema", {"type": "AVRO", "schema": text})
    client.create_producer(topic, schema=pulsar.schema.AvroSchema(Person))
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic, schema=pulsar.schema.AvroSchema(Stranger))


# --- lookup and metrics -------------------------------------------------------------------------------------


def test_a_lookup_names_this_broker(weir, unique: str) -> None:
    told = weir.do("GET", f"/lookup/v2/topic/persistent/public/default/{unique}")
    assert (told["brokerUrl"], told["httpUrl"]) == (weir.url, weir.http)


def test_metrics_tell_of_topics_and_subscriptions(weir, client, unique: str, topic: str) -> None:
    weir.do("PUT", f"persistent/public/default/{unique}/subscription/s")
    send(client, topic, b"a", b"b")
    lines = weir.ask("GET", "/metrics").body.decode().splitlines()
    assert f'weir_topic_published_messages_total{{topic="{topic}"}} 2' in lines
    assert f'weir_subscription_backlog_messages{{topic="{topic}",subscription="s"}} 2' in lines
