"""`weir groups`, `weir peek`, `weir delayed` and `weir topics` after clients of Kafka, Pulsar and AMQP."""

import csv
import io
import json
from typing import Any

import pika
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process


@pytest.fixture
def admin(run_here: Any) -> Any:
    """Runs a command that must succeed; what it said, decoded if it was asked for as JSON."""

    def run(command: str, *more: str, stdin: bytes = b"") -> Any:
        done = run_here(*command.split(), *more, stdin=stdin)
        assert done.code == 0, done
        return json.loads(done.out) if "--json" in command else done.out

    return run


@pytest.fixture
def refused(run_here: Any) -> Any:
    """Runs a command that must fail; what it said."""

    def run(command: str, code: int = 1) -> str:
        done = run_here(*command.split())
        assert (done.code, done.out) == (code, ""), done
        return str(done.err)

    return run


def payloads(shown: str) -> list[str]:
    return [json.loads(line)["payload"] for line in shown.splitlines()]


@pytest.fixture(scope="module")
def kafka_group(weir_up: UpProcess) -> str:
    """Ten messages on each of two partitions; the group has taken three of the second."""
    servers = {"bootstrap.servers": weir_up.kafka}
    kafka = AdminClient(servers)
    for made in kafka.create_topics([NewTopic("grouped", 2, 1)]).values():
        made.result()
    producer = Producer(servers)
    for number in range(20):
        producer.produce("grouped", f"v{number}", partition=number % 2)
    producer.flush()
    consumer = Consumer({**servers, "group.id": "kg"})
    consumer.commit(offsets=[TopicPartition("grouped", 0, 0), TopicPartition("grouped", 1, 3)], asynchronous=False)
    consumer.close()
    return "kg"


def test_a_kafka_group_is_listed_described_and_moved(admin: Any, kafka_group: str) -> None:
    (listed,) = [one for one in admin("groups list --json") if one["group"] == kafka_group]
    assert (listed["kind"], listed["lag"], listed["topics"], listed["members"]) == ("kafka", 17, ["grouped"], 0)
    told = admin("groups describe kg --json")
    assert [(one["partition"], one["position"], one["lag"]) for one in told["partitions"]] == [
        (0, 0, 10),
        (1, 3, 7),
    ]
    planned = admin("groups reset kg --shift-by 2 --dry-run --json")
    assert [one["after"] for one in planned["partitions"]] == [2, 5]
    for to, after in (("earliest", [0, 0]), ("latest", [10, 10]), ("4", [4, 4]), ("-1h", [0, 0])):
        admin(f"groups reset kg --to {to}")
        told = admin("groups describe kg --json")
        assert [one["position"] for one in told["partitions"]] == after, to
    admin("groups reset kg --to 3 --topic grouped-partition-1")
    assert [one["position"] for one in admin("groups describe kg --json")["partitions"]] == [0, 3]


def test_peek_shows_what_a_kafka_group_has_not_committed(admin: Any, kafka_group: str) -> None:
    admin("groups reset kg --to latest --topic grouped-partition-0")
    admin("groups reset kg --to 3 --topic grouped-partition-1")
    assert payloads(admin(f"peek grouped {kafka_group} -n 3 -o json")) == ["v7", "v9", "v11"]
    assert len(payloads(admin(f"peek grouped {kafka_group} -n 100 -o json"))) == 7


def test_a_group_with_members_is_not_moved(weir_up: UpProcess, admin: Any, refused: Any) -> None:
    Producer({"bootstrap.servers": weir_up.kafka}).flush()
    admin("topics create alive")
    admin("produce alive one")
    consumer = Consumer(
        {"bootstrap.servers": weir_up.kafka, "group.id": "living", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe(["alive"])
        while not consumer.poll(1):
            pass
        assert "stop them" in refused("groups reset living --to earliest")
        told = admin("groups describe living --json")
        assert (told["members"], told["state"]) == (1, "stable")
        assert payloads(admin("peek alive living -o json")) == ["one"]  # nothing is committed yet
    finally:
        consumer.close()


def test_a_shared_subscription_with_holes_shows_what_is_left(admin: Any) -> None:
    admin("topics create holes")
    admin("subscriptions create holes s --from earliest")
    admin("produce holes", *(f"m{at}" for at in range(6)))  # one batch
    assert admin("consume holes -s s --type shared -n 2") == "m0\nm1\n"
    assert payloads(admin("peek holes s -n 10 -o json")) == ["m2", "m3", "m4", "m5"]
    (listed,) = admin("groups list --json --topic holes")
    assert (listed["group"], listed["kind"], listed["lag"]) == ("s", "pulsar", 4)
    admin("groups reset s --topic holes --to 5")
    assert payloads(admin("peek holes s -n 10 -o json")) == ["m5"]
    assert "acknowledged everything" in admin_error(admin, "holes")


def admin_error(admin: Any, topic: str) -> str:
    """Everything is acknowledged: there is nothing to show, and that is said."""
    admin(f"groups reset s --topic {topic} --to latest")
    shown = admin(f"peek {topic} s")
    assert shown == ""
    return "acknowledged everything"


def test_one_message_is_redelivered_by_its_offset(admin: Any, refused: Any) -> None:
    admin("topics create single")
    admin("subscriptions create single s --from earliest")
    admin("produce single", *(f"m{at}" for at in range(4)))  # one batch
    assert admin("consume single -s s --type shared -n 4") == "m0\nm1\nm2\nm3\n"
    assert "delivered again: offset 2" in admin("subscriptions redeliver single s 2")
    assert admin("subscriptions redeliver single s 2 --json")["waiting"] == [2]
    assert admin("consume single -s s --type shared -n 1") == "m2\n"
    assert "no message at offset 9" in refused("subscriptions redeliver single s 9")
    admin("subscriptions create single none --filter", "colour = 'red'")
    assert "its filter leaves it out" in refused("subscriptions redeliver single none 0")


def test_a_queue_gets_one_message_again(weir_up: UpProcess, admin: Any) -> None:
    host, port = weir_up.amqp.split(":")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    channel = connection.channel()
    channel.queue_declare("singleq", durable=True)
    durable = pika.BasicProperties(delivery_mode=2)
    channel.confirm_delivery()
    for text in ("a", "b", "c"):
        channel.basic_publish("", "singleq", text, durable)
    for _ in range(3):
        channel.basic_get("singleq", auto_ack=True)
    assert "delivered again: offset 1" in admin(f"subscriptions redeliver singleq {QUEUE_SUBSCRIPTION} 1")
    method, _, body = channel.basic_get("singleq", auto_ack=True)
    assert (body, method.redelivered) == (b"b", True)
    assert channel.basic_get("singleq", auto_ack=True)[0] is None
    connection.close()


def test_a_kafka_group_has_a_position_and_no_single_messages(kafka_group: str, refused: Any) -> None:
    said = refused(f"subscriptions redeliver grouped-partition-1 {kafka_group} 0")
    assert "one position" in said
    assert "move it to the message, or send a copy" in said


def test_a_queue_with_priorities_shows_the_most_urgent_first(weir_up: UpProcess, admin: Any, refused: Any) -> None:
    host, port = weir_up.amqp.split(":")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("urgent", durable=True, arguments={"x-max-priority": 5})
        for number in range(6):
            said = pika.BasicProperties(priority=number % 3, delivery_mode=2)
            channel.basic_publish("", "urgent", f"p{number}".encode(), said)
        method, _, body = channel.basic_get("urgent")
        assert body == b"p2"
        channel.basic_ack(method.delivery_tag)
        channel.queue_declare("urgent", passive=True)  # the acknowledgement has arrived
    finally:
        connection.close()
    assert payloads(admin("peek urgent -n 10 -o json")) == ["p5", "p1", "p4", "p0", "p3"]
    (listed,) = [one for one in admin("groups list --json --kind amqp") if one["group"] == "urgent"]
    assert (listed["lag"], listed["state"]) == (5, "queue")
    assert "is a queue" in refused("groups reset urgent --to earliest")


def test_what_is_held_is_listed_and_cancelled(admin: Any, refused: Any) -> None:
    admin("topics create waiting -p 2")
    for word in ("a", "b", "c"):
        admin(f"produce waiting {word} --key {word} --deliver-in 1h")
    held = admin("held list waiting --json")
    assert sum(one["messages"] for one in held) == 3
    assert "min" in admin("held list waiting")
    admin(f"held cancel waiting {held[0]['id']}")
    assert len(admin("held list waiting --json")) == 2
    assert "no delayed message 999:0" in refused("held cancel waiting 999:0")
    assert "--all" in refused("held cancel waiting", 2)
    admin(f"held release waiting {held[1]['id']}")
    assert admin("held cancel waiting --all") == "1 cancelled\n"
    assert admin("held list waiting --json") == []


def test_a_topic_in_use_is_deleted_by_force_alone(admin: Any, refused: Any) -> None:
    admin("topics create used")
    admin("subscriptions create used s")
    assert "1 subscription (s)" in (said := refused("topics delete used"))
    assert "--force" in said
    admin("topics delete used --force")
    assert "used" in refused("topics stats used")


def test_lists_have_sizes_and_every_format(admin: Any) -> None:
    admin("topics create sized")
    admin("produce sized", "x" * 5000)
    (row,) = [
        row for row in csv.DictReader(io.StringIO(admin("topics list -o csv --sizes"))) if "sized" in row["topic"]
    ]
    assert row["messages"] == "1"
    assert int(row["size"]) > 0
    assert "persistent://public/default/sized" in admin("topics list")
    assert "CONSUMERS" in admin("topics list -o wide")
    assert "size" in admin("topics list --json --sizes")[0]
    assert admin("topics list --json --no-sizes")[0].keys() == {"topic", "partitions"}
    for command in ("tenants list", "namespaces list", "topics stats sized", "topics internal-stats sized"):
        assert admin(f"{command} -o csv").count("\n") > 1


def test_keys_headers_and_offsets_go_in_and_come_out(admin: Any) -> None:
    admin("produce kept -K : -H source=web", stdin=b"a:1\nb:2\nc:3\n")
    assert (
        admin("consume kept --wait 50ms -F", "%o %k=%s %h;%n")
        == "0 a=1 source=web;\n1 b=2 source=web;\n2 c=3 source=web;\n"
    )
    assert admin("consume kept --wait 50ms --offset 1 -F", "%s ") == "2 3 "
    assert admin("consume kept --wait 50ms --offset -1 -F", "%s") == "3"
    assert admin("consume kept --wait 50ms --from -1h -n 1") == "1\n"
    copied = admin("consume kept --wait 50ms -o json")
    assert admin("produce copied --input json", stdin=copied.encode()) == "3 messages stored in copied\n"
    assert admin("consume copied --wait 50ms -F", "%k%s%h,") == "a1source=web,b2source=web,c3source=web,"
    rows = list(csv.DictReader(io.StringIO(admin("consume kept --wait 50ms -o csv"))))
    assert [(row["offset"], row["key"], row["payload"]) for row in rows] == [
        ("0", "a", "1"),
        ("1", "b", "2"),
        ("2", "c", "3"),
    ]
    assert "a" in admin("consume kept --wait 50ms -o wide").splitlines()[1]


def test_consuming_ends_with_an_error_when_it_did_not_get_all(admin: Any, run_here: Any) -> None:
    admin("produce few one")
    done = run_here("consume", "few", "-n", "2", "--wait", "200ms")
    assert (done.code, done.out) == (1, "one\n")
    assert "1 of 2 messages arrived" in done.err
    assert run_here("consume", "few", "--from", "nowhere").code == 2
    assert run_here("consume", "few", "-F", "%y").code == 2
    assert run_here("consume", "few", "-s", "s", "--offset", "1").code == 2


def test_a_token_may_be_in_a_file(run_here: Any, tmp_path: Any) -> None:
    path = tmp_path / "token"
    path.write_text("t\n")
    assert run_here("topics", "list", "--token-file", str(path)).code == 0
    assert "exclude" in run_here("topics", "list", "--token-file", str(path), "--token", "t").err
    assert "/no/such" in run_here("topics", "list", "--token-file", "/no/such").err


def test_a_kafka_group_can_be_given_its_beginning_before_it_exists(
    weir_up: UpProcess, admin: Any, refused: Any, kafka_group: str
) -> None:
    assert "--create creates a Kafka group" in refused("groups reset early --to 4 --topic grouped")
    assert "name a topic" in refused("groups reset early --to 4 --create", 2)
    shown = admin("groups reset early --to 4 --topic grouped --create --dry-run --json")
    assert [(one["before"], one["after"]) for one in shown["partitions"]] == [(None, 4), (None, 4)]
    admin("groups reset early --to 4 --topic grouped --create")
    consumer = Consumer({"bootstrap.servers": weir_up.kafka, "group.id": "early"})
    asked = [TopicPartition("grouped", partition) for partition in (0, 1)]
    assert [one.offset for one in consumer.committed(asked, timeout=30)] == [4, 4]
    consumer.close()
