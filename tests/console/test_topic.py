"""Pages about one topic: what they show of every kind of message, and what their forms do."""

import html
import json
import time

import pulsar
import pytest
from pulsar import schema as kinds
from tests.admin.conftest import Weir
from tests.console.conftest import Visitor

from weir.console.pages import dead_letters

EVIL = '<script>alert("x")</script>'


class Order(kinds.Record):
    item = kinds.String()
    count = kinds.Integer()


def url(name: str, page: str = "") -> str:
    return f"/console/topic/persistent/public/default/{name}{'/' + page if page else ''}"


@pytest.fixture
def topic(weir: Weir, unique: str) -> str:
    weir.do("PUT", f"persistent/public/default/{unique}")
    return unique


def test_a_topic_shows_its_rates_producers_ledgers_and_storage(
    visitor: Visitor, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(f"public/default/{topic}", producer_name=f"maker-{topic}")
    producer.send(b"x")
    words = visitor.get(url(topic)).words
    assert f"maker-{topic}" in words
    assert "Ledgers" in words
    assert "Messages per second" in words
    assert "Lag by subscription" in words


def test_a_topic_that_is_not_there_is_a_404(visitor: Visitor, unique: str) -> None:
    for page in ("", "messages", "held", "subscriptions", "schema", "policies", "produce", "deadletters", "trace"):
        assert visitor.get(url(unique, page)).status == 404
    assert visitor.get("/console/topic/other/public/default/x").status == 404


def test_a_topic_shows_what_became_of_a_message(
    visitor: Visitor, weir: Weir, client: pulsar.Client, topic: str
) -> None:
    assert "Nothing is known" in visitor.get(url(topic, "trace?by=key&wanted=none")).words
    weir.do("POST", f"persistent/public/default/{topic}/traceRate", 1.0)
    producer = client.create_producer(f"public/default/{topic}", producer_name=f"maker-{topic}")
    producer.send(b"x", partition_key="o-17")
    deadline = time.monotonic() + 60
    while f"maker-{topic}" not in (page := visitor.get(url(topic, "trace?by=key&wanted=o-17")).words):
        assert time.monotonic() < deadline, page
    assert "100 % of the messages are traced" in page
    assert "produced" in page


def test_a_partitioned_topic_shows_each_partition_and_can_grow(visitor: Visitor, weir: Weir, unique: str) -> None:
    weir.do("PUT", f"persistent/public/default/{unique}/partitions", 3)
    page = visitor.get(url(unique))
    assert page.text.count(f"{unique}-partition-") == 3
    grown = visitor.post(f"{url(unique)}/grow", partitions="5", back=url(unique))
    assert "It has 5 partitions now." in grown.words
    refused = visitor.post(f"{url(unique)}/grow", partitions="2", back=url(unique))
    assert "cannot have fewer" in refused.words


# --- messages ---------------------------------------------------------------------------------------------------


def sent(client: pulsar.Client, topic: str, schema: object, value: object, **more: object) -> None:
    producer = client.create_producer(f"public/default/{topic}", schema=schema)
    producer.send(value, **more)
    producer.close()


@pytest.mark.parametrize(
    ("schema", "value", "shown"),
    [
        (kinds.StringSchema(), "plain words", ["plain words", "STRING"]),
        (kinds.BytesSchema(), b"\x00\xff\x01", ["00 ff 01", "bytes"]),
        (kinds.BytesSchema(), b'{"a": [1, 2]}', ["&#34;a&#34;: [", "JSON"]),
        (kinds.JsonSchema(Order), Order(item="nails", count=7), ["&#34;item&#34;: &#34;nails&#34;", "JSON"]),
        (kinds.AvroSchema(Order), Order(item="nails", count=7), ["&#34;item&#34;: &#34;nails&#34;", "AVRO"]),
    ],
    ids=["string", "bytes", "bytes that are JSON", "JSON", "Avro"],
)
def test_values_are_decoded_by_the_topic_s_schema(
    visitor: Visitor, client: pulsar.Client, topic: str, schema: object, value: object, shown: list[str]
) -> None:
    sent(client, topic, schema, value, partition_key="k1", properties={"who": "me"})
    text = visitor.get(url(topic, "messages")).text
    for part in [*shown, "k1", "who"]:
        assert part in text


def test_values_that_are_not_what_the_schema_says_are_shown_as_they_are_with_the_reason(
    visitor: Visitor, weir: Weir, topic: str
) -> None:
    body = {"type": "AVRO", "schema": json.dumps(Order.schema()), "properties": {}}
    weir.do("POST", f"schemas/public/default/{topic}/schema", body)
    weir.do("POST", f"/admin/weir/v1/messages/persistent/public/default/{topic}", {"value": "/w=="})
    page = visitor.get(url(topic, "messages"))
    assert "not AVRO" in page.words
    assert ">000000  ff" in page.text


def test_messages_are_found_by_offset_moment_and_key(visitor: Visitor, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(f"public/default/{topic}", batching_enabled=False)
    for number in range(60):
        producer.send(f"value-{number:02}".encode(), partition_key=f"key-{number % 20}")
    newest = visitor.get(url(topic, "messages"))
    assert "value-59" in newest.text
    assert "value-09" not in newest.text
    by_offset = visitor.get(f"{url(topic, 'messages')}?by=offset&offset=5")
    assert "value-05" in by_offset.text
    assert "value-04" not in by_offset.text
    assert 'rel="next"' in by_offset.text
    by_key = visitor.get(f"{url(topic, 'messages')}?by=key&key=key-7")
    assert [n for n in range(60) if f"value-{n:02}" in by_key.text] == [7, 27, 47]
    assert "value-00" in visitor.get(f"{url(topic, 'messages')}?by=moment&moment=2020-01-01T00:00").text
    assert "There is no message here" in visitor.get(f"{url(topic, 'messages')}?by=moment&moment=2090-01-01").words
    assert visitor.get(f"{url(topic, 'messages')}?by=moment&moment=yesterday").status == 400


def test_scripts_in_payloads_keys_headers_and_names_are_text(
    visitor: Visitor, client: pulsar.Client, weir: Weir, unique: str
) -> None:
    topic = f"{unique}<img src=x onerror=alert(1)>"
    quoted = topic.replace("<", "%3C").replace(">", "%3E").replace(" ", "%20").replace("=", "%3D")
    producer = client.create_producer(f"persistent://public/default/{topic}")
    producer.send(EVIL.encode(), partition_key=EVIL, properties={EVIL: EVIL})
    weir.do("PUT", f"persistent/public/default/{quoted}/subscription/%3Cb%3Ebold")
    for path in (
        f"/console/topics?q={unique}",
        url(quoted),
        url(quoted, "messages"),
        url(quoted, "subscriptions"),
        f"{url(quoted, 'messages')}?by=key&key=%3Cscript%3Ealert(1)",
        "/console/topics?q=%3Cscript%3Ealert(1)%3C/script%3E",
        "/console/topics?namespace=%3Cscript%3E",
    ):
        page = visitor.get(path)
        assert "<script>alert" not in page.text, path
        assert "<img src=x" not in page.text, path
        assert "<b>bold" not in page.text, path
        assert page.status in (200, 404)


# --- doing ------------------------------------------------------------------------------------------------------


def test_a_message_is_produced_with_key_and_headers(visitor: Visitor, topic: str) -> None:
    page = visitor.post(url(topic, "produce"), value="hello", key="k", headers="trace: 42", **{"as": "text"})
    assert "Sent: offset 0" in page.words
    assert "hello" in page.words
    assert "trace 42" in page.words


def test_what_is_typed_is_written_by_the_schema_or_refused(visitor: Visitor, weir: Weir, topic: str) -> None:
    body = {"type": "AVRO", "schema": json.dumps(Order.schema()), "properties": {}}
    weir.do("POST", f"schemas/public/default/{topic}/schema", body)
    refused = visitor.post(url(topic, "produce"), value="no JSON", back=url(topic, "produce"))
    assert "the value does not fit the schema" in refused.words
    good = visitor.post(url(topic, "produce"), value='{"item": "nails", "count": 3}')
    assert "Sent: offset 0" in good.words
    assert "AVRO" in good.words


def test_what_is_sent_for_later_is_held_and_can_be_cancelled_or_delivered_now(
    visitor: Visitor, topic: str
) -> None:
    for number in range(2):
        page = visitor.post(url(topic, "produce"), value=f"later-{number}", at="2090-01-01T00:00")
    assert "2 waiting for their moment" in page.words
    ids = [piece.split('"')[0] for piece in page.text.split('name="held" value="')[1:]]
    first, second = ids[0], ids[-1]
    cancelled = visitor.post(url(topic, "held/cancel"), held=first, partition="0")
    assert "it will never be seen" in cancelled.words
    assert "1 waiting for their moment" in cancelled.words
    visitor.post(url(topic, "held/release"), held=second, partition="0")
    assert "later-1" in visitor.get(url(topic, "messages")).words
    gone = visitor.post(url(topic, "held/cancel"), held=first, partition="0", back=url(topic, "held"))
    assert 'class="flash bad"' in gone.text


def test_a_message_is_sent_again(visitor: Visitor, client: pulsar.Client, topic: str) -> None:
    sent(client, topic, kinds.BytesSchema(), b"once", partition_key="k", properties={"p": "v"})
    page = visitor.post(url(topic, "again"), offset="0", partition="0")
    assert "it is at offset 1 now" in page.words
    assert page.text.count('<pre class="value">once</pre>') == 2
    assert visitor.post(url(topic, "again"), offset="77", partition="0").status == 404


def test_a_subscription_is_made_moved_and_deleted(visitor: Visitor, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(f"public/default/{topic}", batching_enabled=False)
    for number in range(5):
        producer.send(str(number).encode())
    base = url(topic, "subscriptions")
    page = visitor.post(f"{base}/create", subscription="work", **{"from": "earliest"})
    assert "work is there." in page.words
    assert "5 wait" in page.words
    for to, value, left in (
        ("end", "", 0),
        ("start", "", 5),
        ("skip", "2", 3),
        ("offset", "1", 4),
        ("moment", "2090-01-01", 0),
        ("moment", "2020-01-01", 5),
    ):
        page = visitor.post(f"{base}/move", subscription="work", to=to, value=value, confirmed="yes")
        assert f"{left} wait" in page.words, (to, value)
    for to, value, why in (("skip", "x", "is not a number"), ("", "", "no place to move to was chosen")):
        assert why in visitor.post(f"{base}/move", subscription="work", to=to, value=value, back=base).words
    assert "work is deleted." in visitor.post(f"{base}/delete", subscription="work").words


def test_a_move_is_confirmed_with_the_number_of_messages(
    visitor: Visitor, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(f"public/default/{topic}", batching_enabled=False)
    for number in range(5):
        producer.send(str(number).encode())
    base = url(topic, "subscriptions")
    page = visitor.post(f"{base}/create", subscription="work", **{"from": "earliest"})
    assert '<option value="" selected>' in page.text, "nothing is chosen beforehand"
    visitor.post(f"{base}/move", subscription="work", to="skip", value="2", confirmed="yes")
    for to, value, effect, button in (
        ("end", "", "3 messages are skipped", "Skip 3 messages"),
        ("start", "", "2 messages that were acknowledged are delivered again", "Deliver 2 messages again"),
        ("skip", "1", "1 message is skipped", "Skip 1 message"),
        ("offset", "4", "2 messages are skipped", "Skip 2 messages"),
        ("offset", "1", "1 message that was acknowledged is delivered again", "Deliver 1 message again"),
        ("moment", "2020-01-01", "2 messages that were", "Deliver 2 messages again"),
        ("moment", "2090-01-01", "3 messages are skipped", "Skip 3 messages"),
        ("offset", "2", "No message is skipped, and none is delivered again", "Move"),
    ):
        page = visitor.post(f"{base}/move", subscription="work", to=to, value=value)
        assert effect in page.words, (to, value, page.words)
        assert f">{button}</button>" in page.text, (to, value)
    assert "3 wait" in visitor.get(base).words, "nothing was moved"
    assert visitor.post(f"{base}/move", subscription="nobody", to="end").status == 404


def test_a_subscription_without_a_backlog_has_no_oldest_message(visitor: Visitor, topic: str) -> None:
    base = url(topic, "subscriptions")
    page = visitor.post(f"{base}/create", subscription="work", **{"from": "latest"})
    assert "0 wait" in page.words
    assert "oldest" not in page.words


def test_the_form_keeps_its_content_after_a_refusal(visitor: Visitor, weir: Weir, topic: str) -> None:
    body = {"type": "AVRO", "schema": json.dumps(Order.schema()), "properties": {}}
    weir.do("POST", f"schemas/public/default/{topic}/schema", body)
    sent = {"value": "<no JSON>", "key": 'k"1', "headers": "a: b", "at": "2090-01-01T00:00", "as": "text"}
    for more in ({}, {"value": "zz", "as": "hex"}, {"headers": "nonsense"}, {"at": "yesterday"}):
        page = visitor.post(url(topic, "produce"), back=url(topic, "produce"), **{**sent, **more})
        assert page.status == 400
        assert 'role="alert"' in page.text
        filled = {name: html.escape({**sent, **more}[name]).replace("&quot;", "&#34;") for name in sent}
        assert f"\n{filled['value']}</textarea>" in page.text
        assert f"\n{filled['headers']}</textarea>" in page.text
        assert f'name="key" value="{filled["key"]}"' in page.text
        assert f'name="at" value="{filled["at"]}"' in page.text
        assert ('<option value="hex" selected>' in page.text) == (filled["as"] == "hex")


def test_messages_are_looked_up_by_controls(visitor: Visitor, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(f"public/default/{topic}", batching_enabled=False)
    for number in range(3):
        producer.send(f"value-{number}".encode(), partition_key=f"key-{number}")
    base = url(topic, "messages")
    for by, control in (
        ("moment", 'type="datetime-local"'),
        ("key", 'name="key"'),
        ("offset", 'name="offset" min'),
    ):
        page = visitor.get(f"{base}?by={by}")  # as the choice in the form asks
        assert f'<option value="{by}" selected>' in page.text
        assert control in page.text
        assert "value-2" in page.text
    page = visitor.get(f"{base}?by=moment&moment=2020-01-01T00%3A00")
    assert 'value="2020-01-01T00:00:00.000"' in page.text
    assert "value-0" in page.text
    assert 'value="2020-01-01T00:00:00.000"' in visitor.get(f"{base}?by=moment&moment=1577836800000").text
    page = visitor.get(f"{base}?by=key&key=key-1")
    assert ("value-1" in page.text, "value-2" in page.text) == (True, False)
    assert visitor.get(f"{base}?by=moment&moment={10**17 - 1}").status == 200


def test_redelivering_from_a_message_brings_it_and_what_is_behind_again(
    visitor: Visitor, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(f"public/default/{topic}", "work", negative_ack_redelivery_delay_ms=100)
    producer = client.create_producer(f"public/default/{topic}", batching_enabled=False)
    for number in range(3):
        producer.send(str(number).encode())
    for _ in range(3):
        consumer.acknowledge(consumer.receive(30_000))
    consumer.close()
    moved = {"subscription": "work", "to": "offset", "value": "1", "partition": "0", "confirmed": "yes"}
    visitor.post(url(topic, "subscriptions/move"), **moved)
    consumer = client.subscribe(f"public/default/{topic}", "work")
    assert [consumer.receive(30_000).data() for _ in range(2)] == [b"1", b"2"]


def test_one_message_is_redelivered_alone(visitor: Visitor, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(f"public/default/{topic}", "work", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(f"public/default/{topic}", batching_enabled=False)
    for number in range(3):
        producer.send(str(number).encode())
    for _ in range(3):
        consumer.acknowledge(consumer.receive(30_000))
    consumer.close()
    page = visitor.post(url(topic, "redeliver"), subscription="work", offset="1", partition="0")
    assert "work: the message at offset 1 is delivered again." in page.words
    consumer = client.subscribe(f"public/default/{topic}", "work", consumer_type=pulsar.ConsumerType.Shared)
    producer.send(b"new")
    assert [consumer.receive(30_000).data() for _ in range(2)] == [b"1", b"new"]
    assert visitor.post(url(topic, "redeliver"), subscription="work", offset="77", partition="0").status == 404
    assert visitor.post(url(topic, "redeliver"), subscription="work", offset="x", partition="0").status == 400


def test_dead_letters_are_redriven_to_where_they_came_from_once(
    visitor: Visitor, client: pulsar.Client, weir: Weir, topic: str
) -> None:
    dead = f"{topic}-work-DLQ"
    producer = client.create_producer(f"public/default/{dead}", batching_enabled=False)
    for number in range(3):
        real = f"persistent://public/default/{topic}"
        producer.send(f"bad-{number}".encode(), properties={"REAL_TOPIC": real, "mine": "kept"})
    assert dead in visitor.get(url(topic, "deadletters")).words
    page = visitor.get(url(dead, "deadletters"))
    assert "3 dead letters here were not redriven" in page.words
    target = page.text.split('name="target" value="')[1].split('"')[0]
    assert target == f"persistent://public/default/{topic}"
    done = visitor.post(url(dead, "deadletters/redrive"), target=target)
    assert f"3 messages were sent to {topic}." in done.words
    assert "0 dead letters here were not redriven" in done.words or "Nothing says" in done.words
    again = visitor.post(url(dead, "deadletters/redrive"), target=target)
    assert "0 messages were sent" in again.words
    back = visitor.get(url(topic, "messages"))
    assert [f"bad-{n}" in back.text for n in range(3)] == [True] * 3
    assert "mine kept" in back.words
    assert "REAL_TOPIC" not in back.words


def test_a_redrive_moves_the_letters_that_are_there_and_none_that_dies_again(
    visitor: Visitor, client: pulsar.Client, weir: Weir, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "_PAGE", 1)
    dead = f"{topic}-work-DLQ"
    real = f"persistent://public/default/{topic}"

    def fail(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        consumer.negative_acknowledge(message)

    consumer = client.subscribe(
        f"public/default/{topic}",
        "work",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=1,
        properties={"weir.retry.max-deliveries": "1"},
        message_listener=fail,
    )
    producer = client.create_producer(f"public/default/{topic}")
    for number in range(100):
        producer.send(str(number).encode())
    deadline = time.monotonic() + 120
    while "100 dead letters here" not in (page := visitor.get(url(dead, "deadletters")).words):
        assert time.monotonic() < deadline, page
    done = visitor.post(url(dead, "deadletters/redrive"), target=real)
    assert f"100 messages were sent to {topic}." in done.words
    consumer.close()


def test_schema_and_policies_are_shown(visitor: Visitor, weir: Weir, topic: str) -> None:
    body = {"type": "JSON", "schema": json.dumps(Order.schema()), "properties": {"team": "shop"}}
    weir.do("POST", f"schemas/public/default/{topic}/schema", body)
    page = visitor.get(url(topic, "schema"))
    assert "Version 0 JSON latest" in page.words
    assert "nails" not in page.words
    weir.do("POST", f"persistent/public/default/{topic}/messageTTL?messageTTL=77")
    words = visitor.get(url(topic, "policies")).words
    assert "message ttl s 77 here" in words


def test_a_topic_is_emptied_and_deleted(visitor: Visitor, client: pulsar.Client, weir: Weir, topic: str) -> None:
    sent(client, topic, kinds.BytesSchema(), b"x")
    assert "Every message is forgotten." in visitor.post(url(topic, "empty")).words
    consumer = client.subscribe(f"public/default/{topic}", "work")
    refused = visitor.post(url(topic, "delete"), back=url(topic))
    assert 'class="flash bad"' in refused.text
    consumer.close()
    assert f"{topic} is deleted." in visitor.post(url(topic, "delete"), force="yes").words
    assert visitor.get(url(topic)).status == 404


def test_who_looks_at_a_topic_that_is_deleted_is_shown_no_more(visitor: Visitor, weir: Weir, topic: str) -> None:
    import http.client

    address = weir.up.addresses["http"]
    connection = http.client.HTTPConnection(address.host, address.port, timeout=60)
    live = url(topic).replace("/console/", "/console/live/", 1)
    connection.request("GET", live, headers={"accept": "text/event-stream"})
    response = connection.getresponse()
    while response.readline() != b"event: topic\n":
        pass
    weir.do("DELETE", f"persistent/public/default/{topic}?force=true")
    assert response.read() is not None, "the stream comes to its end"
    assert visitor.get(live).status == 404


def test_a_message_that_cannot_be_written_is_a_bad_request(weir: Weir, topic: str) -> None:
    path = f"/admin/weir/v1/messages/persistent/public/default/{topic}"
    for body in ({"value": "no base64"}, {"value": "eA==", "headers": [["n" * 70_000, None]]}):
        assert weir.ask("POST", path, body).status == 400
