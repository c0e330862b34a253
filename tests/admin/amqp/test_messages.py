"""Messages over HTTP: published with all their properties, and got with each way to acknowledge them."""

import pytest

PROPERTIES = {
    "delivery_mode": 2,
    "headers": {"number": 1, "text": "x", "list": [1, "a"], "table": {"deep": True}},
    "content_type": "text/plain",
    "content_encoding": "utf8",
    "priority": 3,
    "timestamp": 1234,
    "expiration": "600000",
    "message_id": "id",
    "type": "t",
    "user_id": "guest",
    "app_id": "a",
    "reply_to": "r",
    "correlation_id": "c",
    "cluster_id": "cl",
}


@pytest.fixture
def queue(api, vhost: str) -> str:
    api.do("PUT", f"queues/{vhost}/q", {"durable": True})
    return "q"


def test_a_message_comes_back_as_it_was_published(api, vhost: str, queue: str) -> None:
    assert api.publish(vhost, "amq.default", queue, "hello", **PROPERTIES)
    (found,) = api.take(vhost, queue)
    assert found == {
        "payload_bytes": 5,
        "redelivered": False,
        "exchange": "",
        "routing_key": "q",
        "message_count": 0,
        "properties": PROPERTIES,
        "payload": "hello",
        "payload_encoding": "string",
    }
    assert api.take(vhost, queue) == []


def test_a_message_without_properties_has_an_empty_list_of_them(api, vhost: str, queue: str) -> None:
    api.publish(vhost, "amq.default", queue, "hello")
    assert [one["properties"] for one in api.take(vhost, queue)] == [[]]


def test_messages_are_given_back_acknowledged_or_rejected(api, vhost: str) -> None:
    api.do("PUT", f"queues/{vhost}/dead", {"durable": True})
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    api.do("PUT", f"queues/{vhost}/q", {"durable": True, "arguments": arguments})
    for number in range(3):
        api.publish(vhost, "amq.default", "q", str(number))
    first = api.take(vhost, "q", "ack_requeue_true")
    assert [(one["payload"], one["redelivered"], one["message_count"]) for one in first] == [
        ("0", False, 2),
        ("1", False, 1),
        ("2", False, 0),
    ]
    again = api.take(vhost, "q", "reject_requeue_true", count=2)
    assert [(one["payload"], one["redelivered"]) for one in again] == [("0", True), ("1", True)]
    assert [one["payload"] for one in api.take(vhost, "q", "ack_requeue_false", count=1)] == ["0"]
    assert [one["payload"] for one in api.take(vhost, "q", "reject_requeue_false")] == ["1", "2"]
    assert api.take(vhost, "q") == []
    dead: list[str] = []
    while len(dead) < 2:
        dead += [one["payload"] for one in api.take(vhost, "dead")]
    assert dead == ["1", "2"]
    counts = api.get(f"queues/{vhost}/q?columns=messages,messages_ready,messages_unacknowledged")
    assert counts == {"messages": 0, "messages_ready": 0, "messages_unacknowledged": 0}


def test_bytes_that_are_no_text_are_base64_and_payloads_can_be_cut(api, vhost: str, queue: str) -> None:
    body = {"properties": {}, "routing_key": queue, "payload": "//4=", "payload_encoding": "base64"}
    assert api.do("POST", f"exchanges/{vhost}/amq.default/publish", body) == {"routed": True}
    (found,) = api.take(vhost, queue, "ack_requeue_true")
    assert (found["payload"], found["payload_encoding"], found["payload_bytes"]) == ("//4=", "base64", 2)
    (found,) = api.take(vhost, queue)
    api.publish(vhost, "amq.default", queue, "hello")
    (found,) = api.take(vhost, queue, "ack_requeue_true", truncate=3)
    assert (found["payload"], found["payload_bytes"]) == ("hel", 5)
    (found,) = api.take(vhost, queue, encoding="base64")
    assert (found["payload"], found["payload_encoding"]) == ("aGVsbG8=", "base64")


def test_it_is_told_whether_any_queue_has_got_it(api, vhost: str, queue: str) -> None:
    api.do("PUT", f"exchanges/{vhost}/logs", {"type": "topic", "durable": True})
    api.do("POST", f"bindings/{vhost}/e/logs/q/{queue}", {"routing_key": "*.error"})
    assert api.publish(vhost, "logs", "db.error")
    assert not api.publish(vhost, "logs", "db.info")
    assert not api.publish(vhost, "amq.default", "none")
    assert api.publish(vhost, "logs", "db.info", headers={"CC": ["x.error"], "BCC": ["y.error"]})
    first, second = api.take(vhost, queue)
    assert (first["exchange"], first["routing_key"]) == ("logs", "db.error")
    assert second["properties"] == {"headers": {"CC": ["x.error"]}}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"properties": {"delivery_mode": "x"}}, "not_int delivery_mode"),
        ({"properties": {"priority": 256}}, "not_int priority"),
        ({"properties": {"type": 1}}, "not_string type"),
        ({"properties": {"type": "x" * 256}}, "type has more than 255 bytes"),
        ({"properties": {"headers": []}}, "headers must be a JSON object"),
        ({"properties": {"headers": {"a": 2**64}}}, "more than 64 bits"),
        ({"properties": {"headers": {"CC": "x"}}}, "CC must be a list"),
        ({"properties": {"expiration": "soon"}}, "invalid expiration"),
        ({"payload_encoding": "weird"}, "unsupported_encoding"),
        ({"payload_encoding": "base64", "payload": "?"}, "not base64"),
    ],
)
def test_what_no_message_can_say_is_refused(api, vhost: str, said, reason: str) -> None:
    body = {"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string", **said}
    answer = api.ask("POST", f"exchanges/{vhost}/amq.default/publish", body)
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    assert reason in answer.json["reason"]


def test_a_topic_with_partitions_is_one_queue_and_tells_the_counts_of_all(api, vhost: str) -> None:
    path = f"/admin/v2/persistent/public/{vhost}/parted"
    api.weir.do("PUT", f"{path}/partitions", 3)
    for _ in range(3):
        assert api.publish(vhost, "amq.default", "parted")
    found = api.get(f"queues/{vhost}/parted")
    assert (found["messages"], found["message_stats"]["publish"]) == (3, 3)
    assert len(api.take(vhost, "parted")) == 3
    assert api.get(f"queues/{vhost}/parted?columns=messages") == {"messages": 0}


def test_a_queue_tells_its_rates_and_counts(api, vhost: str, queue: str) -> None:
    """What Flower, KEDA and other autoscalers read."""
    for _ in range(3):
        api.publish(vhost, "amq.default", queue)
    api.take(vhost, queue, count=1)
    found = api.get(f"queues/{vhost}/{queue}")
    assert (found["messages"], found["messages_ready"], found["messages_unacknowledged"]) == (2, 2, 0)
    assert found["message_stats"]["publish"] == 3
    assert found["message_stats"]["publish_details"]["rate"] >= 0
    assert found["message_stats"]["deliver_get_details"]["rate"] >= 0
    shown = ("node", "type", "state", "consumers", "policy", "exclusive", "auto_delete", "memory")
    assert [found[name] for name in shown] == ["weir@standalone", "classic", "running", 0, None, False, False, 0]
    assert api.get(f"vhosts/{vhost}?columns=messages")["messages"] == 2
    assert api.get("overview")["queue_totals"]["messages"] >= 2
