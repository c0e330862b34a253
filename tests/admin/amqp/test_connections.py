"""Connections, channels and consumers of RabbitMQ's clients: seen, and closed."""

from collections.abc import Iterator
from urllib.parse import quote

import pika
import pika.exceptions
import pytest


@pytest.fixture
def connection(api) -> Iterator[pika.BlockingConnection]:
    address = api.weir.up.addresses["amqp"]
    opened = pika.BlockingConnection(pika.URLParameters(f"amqp://guest:guest@{address}/%2F?heartbeat=30"))
    yield opened
    if opened.is_open:
        opened.close()


def test_a_connection_is_seen_with_its_channels_and_consumers(api, connection, unique: str) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=5)
    channel.queue_declare(unique, durable=True)
    for number in range(3):
        channel.basic_publish("", unique, b"%d" % number)
    taken: list[bytes] = []
    tag = channel.basic_consume(unique, lambda *said: taken.append(said[3]))
    while len(taken) < 3:
        connection.process_data_events(1)
    (found,) = api.get("connections")
    address = api.weir.up.addresses["amqp"]
    assert found["name"].endswith(f" -> {address}")
    assert [found[name] for name in ("user", "vhost", "state", "channels", "timeout", "port", "ssl", "node")] == [
        "guest",
        "/",
        "running",
        1,
        30,
        address.port,
        False,
        "weir@standalone",
    ]
    assert found["client_properties"]["product"] == "Pika Python Client Library"
    assert found["recv_oct"] > 0
    assert api.get(f"connections/{quote(found['name'])}")["name"] == found["name"]
    (seen,) = api.get(f"connections/{quote(found['name'])}/channels")
    shown = (
        "number",
        "consumer_count",
        "messages_unacknowledged",
        "messages_unconfirmed",
        "prefetch_count",
        "confirm",
    )
    assert [seen[name] for name in shown] == [1, 1, 3, 0, 5, True]
    assert (seen["message_stats"]["publish"], seen["message_stats"]["deliver"]) == (3, 3)
    assert [one["name"] for one in api.get("channels")] == [f"{found['name']} (1)"]
    assert api.get("vhosts/%2F/channels?columns=number") == [{"number": 1}]
    assert api.get("connections/username/guest?columns=user") == [{"user": "guest"}]
    assert api.get("vhosts/%2F/connections?columns=vhost") == [{"vhost": "/"}]
    (consumer,) = api.get("consumers/%2F")
    assert consumer["queue"] == {"name": unique, "vhost": "/"}
    assert (consumer["consumer_tag"], consumer["prefetch_count"], consumer["ack_required"]) == (tag, 5, True)
    assert consumer["channel_details"]["connection_name"] == found["name"]
    detail = api.get(f"channels/{quote(seen['name'])}")
    assert detail["consumer_details"] == api.get("consumers") == [consumer]
    queue = api.get(f"queues/%2F/{unique}")
    assert (queue["consumers"], queue["messages_unacknowledged"], queue["consumer_details"]) == (1, 3, [consumer])
    totals = api.get("overview")["object_totals"]
    assert (totals["connections"], totals["channels"], totals["consumers"]) == (1, 1, 1)
    channel.queue_delete(unique)


def test_a_connection_that_is_closed_is_told_why_and_is_gone(api, connection) -> None:
    channel = connection.channel()
    own = channel.queue_declare("", exclusive=True).method.queue
    (found,) = api.get("connections")
    assert api.get(f"queues/%2F/{own}")["owner_pid_details"]["name"] == found["name"]
    assert api.ask("DELETE", f"queues/%2F/{own}").status == 400
    api.do("DELETE", f"connections/{quote(found['name'])}")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        while True:
            connection.process_data_events(1)
    assert closed.value.reply_code == 320
    assert closed.value.reply_text == "CONNECTION_FORCED - Closed via management plugin"
    while api.get("connections"):
        pass
    assert api.ask("GET", f"queues/%2F/{own}").status == 404


def test_a_deleted_vhost_takes_its_connections_along(api, vhost: str) -> None:
    address = api.weir.up.addresses["amqp"]
    opened = pika.BlockingConnection(pika.URLParameters(f"amqp://guest:guest@{address}/{vhost}"))
    api.do("DELETE", f"vhosts/{vhost}")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        while True:
            opened.process_data_events(1)
