"""Lists of topics, groups and queues load no topic, and show the same as if all were loaded."""

import base64
import http.client
import json
from typing import Any

import pulsar
import pytest
from tests.admin.conftest import Weir

from weir.model.topics import TopicName

NS = "acme/lists"
#: Not partitioned, with a subscription; partitioned; never used.
USED, PARTED, NEW = (f"persistent://{NS}/{name}" for name in ("used", "parted", "unused"))


@pytest.fixture(scope="module")
def filled(start_weir: Any) -> Weir:
    """A Weir with topics that were used, and that it has not loaded."""
    weir: Weir = start_weir()
    weir.do("PUT", "tenants/acme", {"allowedClusters": ["standalone"]})
    weir.do("PUT", f"namespaces/{NS}")
    weir.do("PUT", f"persistent/{NS}/parted/partitions", 2)
    weir.do("PUT", f"persistent/{NS}/unused")
    client = pulsar.Client(weir.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"))
    for topic in (USED, PARTED):
        consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer(topic)
        for number in range(4):
            producer.send(b"%d" % number)
        consumer.acknowledge(consumer.receive(timeout_millis=60_000))
        producer.close()
        consumer.close()
    client.close()
    unload(weir)
    return weir


def unload(weir: Weir) -> None:
    for topic in weir.up.composed.broker.loaded:
        weir.run(lambda topic=topic: weir.up.composed.broker.unload(topic.name))
    assert weir.up.composed.broker.loaded == []


def queues(weir: Weir) -> Any:
    """RabbitMQ's list, as its management API has it."""
    address = weir.up.addresses["http"]
    connection = http.client.HTTPConnection(address.host, address.port, timeout=60)
    login = base64.b64encode(b"guest:guest").decode()
    connection.request("GET", f"/api/queues/{NS.replace('/', '%2F')}", headers={"authorization": f"Basic {login}"})
    response = connection.getresponse()
    found = json.loads(response.read())
    assert response.status == 200, found
    connection.close()
    return found


def test_overviews_load_no_topic_and_are_the_same_when_all_are_loaded(filled: Weir) -> None:
    path = f"/admin/weir/v1/overviews/{NS}"
    stored = filled.do("GET", path)["topics"]
    assert filled.up.composed.broker.loaded == []
    assert list(stored) == [PARTED, NEW, USED]
    assert stored[NEW] == {"msgRateIn": 0.0, "msgRateOut": 0.0}
    assert stored[USED]["subscriptions"]["s"] == {"msgBacklog": 3, "position": 1}
    assert stored[PARTED]["subscriptions"]["s"]["msgBacklog"] == 3
    assert (stored[PARTED]["messages"], len(stored[PARTED]["partitions"])) == (4, 2)
    for name in (USED, NEW, f"{PARTED}-partition-0", f"{PARTED}-partition-1"):
        filled.run(lambda name=name: filled.up.composed.broker.load(TopicName.parse(name)))
    assert len(filled.up.composed.broker.loaded) == 4
    live = filled.do("GET", path)["topics"]
    unload(filled)
    assert live == stored


def test_pages_have_every_topic_once(filled: Weir) -> None:
    path = f"/admin/weir/v1/overviews/{NS}?limit=1"
    found, after = [], ""
    while True:
        page = filled.do("GET", f"{path}&after={after}" if after else path)
        found += page["topics"]
        after = page["next"]
        if not after:
            break
    assert found == [PARTED, NEW, USED]


def test_stats_of_a_topic_and_of_partitions_load_nothing(filled: Weir) -> None:
    assert filled.do("GET", f"persistent/{NS}/used/stats")["subscriptions"]["s"]["msgBacklog"] == 3
    whole = filled.do("GET", f"persistent/{NS}/parted/partitioned-stats")
    assert whole["subscriptions"]["s"]["msgBacklog"] == 3
    assert filled.up.composed.broker.loaded == []


def test_the_list_of_queues_loads_nothing(filled: Weir) -> None:
    found = {one["name"]: one["messages"] for one in queues(filled)}
    assert found == {"parted-partition-0": 0, "parted-partition-1": 0, "unused": 0, "used": 0} | {
        name: count for name, count in found.items() if name != "unused"
    }
    assert found["used"] == 4  # what a first consumer of the queue would find
    assert found["parted-partition-0"] + found["parted-partition-1"] == 4
    assert filled.up.composed.broker.loaded == []


def test_a_list_after_a_crash_loads_what_was_in_use_and_unloads_it_again(filled: Weir) -> None:
    """Without a valid overview, which is as after a crash."""
    meta = filled.up.composed.broker._context.streams.meta
    filled.run(lambda: meta.delete(f"/weir/topic-overviews/{NS}/used"))
    for _ in range(2):
        page = filled.do("GET", f"/admin/weir/v1/overviews/{NS}")
        assert page["topics"][USED]["subscriptions"]["s"]["msgBacklog"] == 3
        assert filled.up.composed.broker.loaded == []
