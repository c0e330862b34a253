"""RabbitMQ's management API on a cluster: whichever broker is asked, it shows all queues and connections."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pika
import pika.exceptions
import pytest

from weir.testing.many_brokers import ManyBrokers

NAMES = ("first", "second", "third")


@pytest.fixture
def connection(brokers: ManyBrokers) -> Iterator[Any]:
    """To the first broker."""
    host, _, port = brokers["first"].listeners["amqp"].rpartition(":")
    opened = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    yield opened
    if opened.is_open:
        opened.close()


def test_queues_of_any_broker_are_listed_and_counted(brokers: ManyBrokers, connection: Any, unique: str) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    for name, durable in (("durable", True), ("passing", False)):
        channel.queue_declare(f"{unique}-{name}", durable=durable)
        channel.basic_publish("", f"{unique}-{name}", b"x")
    for asked in NAMES:
        found = brokers[asked].do("GET", f"/api/queues/%2F?name={unique}&columns=name,durable,messages")
        assert found == [
            {"name": f"{unique}-durable", "durable": True, "messages": 1},
            {"name": f"{unique}-passing", "durable": False, "messages": 1},
        ]
        assert brokers[asked].do("GET", f"/api/queues/%2F/{unique}-passing?columns=messages") == {"messages": 1}
    nodes = brokers["third"].do("GET", "/api/nodes?columns=name")
    assert sorted(one["name"] for one in nodes) == ["weir@first", "weir@second", "weir@third"]
    for name in ("durable", "passing"):
        channel.queue_delete(f"{unique}-{name}")


def test_a_connection_is_seen_and_closed_through_another_broker(brokers: ManyBrokers, connection: Any) -> None:
    connection.channel()
    (found,) = brokers["second"].do("GET", "/api/connections")
    assert (found["node"], found["channels"]) == ("weir@first", 1)
    name = quote(found["name"], safe="")
    assert brokers["third"].do("GET", f"/api/connections/{name}?columns=node") == {"node": "weir@first"}
    assert [one["number"] for one in brokers["third"].do("GET", "/api/channels")] == [1]
    brokers["second"].do("DELETE", f"/api/connections/{name}")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="Closed via management plugin"):
        while True:
            connection.process_data_events(1)
