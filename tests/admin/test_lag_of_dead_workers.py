"""The lag of what no worker runs is what its subscription has not read, and not what a dead worker reported."""

import json
from typing import Any

import pulsar
import pytest

NS = "public/default"
WEIR = "/admin/weir/v1"
STREAM = {"id": "", "state": "running", "rows": 3, "lag": 0}
CONNECTOR = {"topic": "orders", "sink": {"type": "files", "path": "/tmp/x"}}


def fill(weir: Any, topic: str, count: int) -> None:
    client = pulsar.Client(weir.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(topic)
    for number in range(count):
        producer.send(str(number).encode())
    client.close()


def subscribe(weir: Any, topic: str, subscription: str, *, read: int) -> None:
    """As a worker that has read so many messages, and died."""
    client = pulsar.Client(weir.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    place = pulsar.InitialPosition.Earliest
    consumer = client.subscribe(topic, subscription, initial_position=place)
    for _ in range(read):
        consumer.acknowledge(consumer.receive(60_000))
    client.close()


def one(found: list[Any], name: str) -> Any:
    (answer,) = [each for each in found if each["name"].endswith(f"/{name}")]
    return answer


@pytest.fixture
def orders(weir: Any) -> Any:
    """A partitioned topic with 3 + 2 messages."""
    weir.do("PUT", f"persistent/{NS}/orders/partitions", 2)
    for partition, count in ((0, 3), (1, 2)):
        fill(weir, f"orders-partition-{partition}", count)
    yield
    weir.do("DELETE", f"persistent/{NS}/orders/partitions?force=true")


@pytest.mark.usefixtures("orders")
def test_of_a_stream(weir: Any) -> None:
    path, runner = f"{WEIR}/streams/{NS}/copy", f"{WEIR}/stream-runner"
    body = {"sql": "SELECT 1", "sources": [f"persistent://{NS}/orders"]}
    stream_id = weir.do("PUT", path, body)["id"]
    weir.do("PUT", f"{path}/progress", STREAM | {"id": stream_id})
    assert weir.do("GET", path)["progress"]["lag"] == 5, "it would begin with the oldest message"
    subscribe(weir, "orders-partition-0", "stream-copy", read=2)
    for found in (
        weir.do("GET", path),
        one(weir.do("GET", f"{WEIR}/streams"), "copy"),
        one(weir.do("GET", f"{WEIR}/streams/{NS}"), "copy"),
    ):
        assert found["progress"]["lag"] == 1 + 2
        assert found["progress"]["rows"] == 3
    weir.do("PUT", runner, {"runner": "r", "where": "here"})
    assert weir.do("GET", path)["progress"]["lag"] == 0, "a worker that runs knows it better"
    weir.do("DELETE", f"{runner}/r")
    weir.do("DELETE", path)


@pytest.mark.usefixtures("orders")
def test_of_a_function(weir: Any) -> None:
    path = f"{WEIR}/functions/{NS}/tidy"
    body = {"code": "def f(m): ...", "entry": "f", "inputs": [f"persistent://{NS}/orders"]}
    made = weir.do("POST", path, body)
    stats = {"id": made["id"], "version": made["version"], "state": "running", "lag": 0}
    weir.do("PUT", f"{path}/stats", stats)
    subscribe(weir, "orders-partition-1", made["subscription"], read=2)
    assert weir.do("GET", path)["stats"]["lag"] == 3
    assert one(weir.do("GET", f"{WEIR}/functions"), "tidy")["stats"]["lag"] == 3
    weir.do("DELETE", path)


@pytest.mark.usefixtures("orders")
def test_of_a_connector(weir: Any) -> None:
    path = f"{WEIR}/connectors/{NS}/out"
    made = weir.do("PUT", path, {"config": json.dumps(CONNECTOR)})
    weir.do("PUT", f"{path}/progress", {"id": made["id"], "state": "running", "lag": 0})
    subscribe(weir, "orders-partition-0", "connect-out", read=1)
    assert weir.do("GET", path)["progress"]["lag"] == 2 + 2
    assert one(weir.do("GET", f"{WEIR}/connectors"), "out")["progress"]["lag"] == 2 + 2
    weir.do("DELETE", path)


@pytest.mark.parametrize("config", ["no JSON", "[]", '{"topic": "t"}', '{"sink": {}}', '{"topic": 1, "sink": {}}'])
def test_what_cannot_be_known_stays_as_it_was_reported(weir: Any, config: str) -> None:
    path = f"{WEIR}/connectors/{NS}/odd"
    made = weir.do("PUT", path, {"config": config})
    weir.do("PUT", f"{path}/progress", {"id": made["id"], "state": "running", "lag": 7})
    assert weir.do("GET", path)["progress"]["lag"] == 7
    weir.do("DELETE", path)
