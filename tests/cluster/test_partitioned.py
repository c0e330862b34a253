"""A partitioned topic whose partitions are on several brokers, asked about on any of them."""

from typing import Any

import pulsar
import pytest

from weir.model.topics import TopicName
from weir.testing.many_brokers import ManyBrokers

#: Each would be chosen for a bundle of the default namespace at least.
NAMES = ("first", "second", "third")
PARTS = 12
LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}


@pytest.fixture
def parted(brokers: ManyBrokers, unique: str) -> str:
    """Made on one broker; its partitions are on all of them once they are used."""
    brokers["first"].do("PUT", f"persistent/public/default/{unique}/partitions", PARTS)
    return unique


def owners(brokers: ManyBrokers, topic: str) -> dict[int, str]:
    name = TopicName.parse(f"persistent://public/default/{topic}")
    return {at: brokers["first"].broker.owner_now(name.at(at)).broker_id for at in range(PARTS)}


def produce(brokers: ManyBrokers, connect: Any, topic: str, count: int) -> None:
    client = connect(brokers["second"].url)
    producer = client.create_producer(f"persistent://public/default/{topic}", batching_enabled=False)
    for at in range(count):
        producer.send_async(b"%d" % at, lambda *_: None)
    producer.flush()
    client.close()


def test_its_stats_are_summed_over_all_brokers(brokers: ManyBrokers, connect, parted: str) -> None:
    produce(brokers, connect, parted, 5 * PARTS)
    assert set(owners(brokers, parted).values()) == {"first", "second", "third"}
    path = f"persistent/public/default/{parted}"
    for name in ("first", "third"):
        whole = brokers[name].do("GET", f"{path}/partitioned-stats")
        assert whole["msgInCounter"] == 5 * PARTS
        assert len({part["ownerBroker"] for part in whole["partitions"].values()}) == 3
        internal = brokers[name].do("GET", f"{path}/partitioned-internalStats")
        assert sum(part["numberOfEntries"] for part in internal["partitions"].values()) == 5 * PARTS


def test_a_subscription_is_made_moved_and_deleted_on_all_brokers(
    brokers: ManyBrokers, connect, parted: str
) -> None:
    path = f"persistent/public/default/{parted}"
    brokers["second"].do("PUT", f"{path}/subscription/s", LATEST)
    produce(brokers, connect, parted, 2 * PARTS)

    def backlog() -> int:
        found: int = brokers["first"].do("GET", f"{path}/partitioned-stats")["subscriptions"]["s"]["msgBacklog"]
        return found

    assert brokers["first"].ask("PUT", f"{path}/subscription/s", LATEST)[0] == 409
    assert backlog() == 2 * PARTS
    brokers["third"].do("POST", f"{path}/subscription/s/skip_all")
    assert backlog() == 0
    brokers["first"].do("POST", f"{path}/subscription/s/resetcursor/0")
    assert backlog() == 2 * PARTS
    brokers["second"].do("POST", f"{path}/subscription/s/expireMessages", LATEST)
    assert backlog() == 0
    brokers["second"].do("PUT", f"{path}/subscription/s/properties", {"a": "b"})
    assert brokers["third"].do("GET", f"{path}/subscription/s/properties") == {"a": "b"}
    assert brokers["third"].do("GET", f"{path}/subscriptions") == ["s"]
    brokers["first"].do("DELETE", f"{path}/subscription/s")
    assert brokers["third"].do("GET", f"{path}/subscriptions") == []
    assert brokers["second"].ask("DELETE", f"{path}/subscription/s")[0] == 404


def test_the_whole_namespace_is_cleared_on_any_broker(brokers: ManyBrokers, connect, parted: str) -> None:
    path = f"persistent/public/default/{parted}"
    brokers["second"].do("PUT", f"{path}/subscription/s", LATEST)
    produce(brokers, connect, parted, PARTS)
    brokers["third"].do("POST", "namespaces/public/default/clearBacklog/s")
    assert brokers["first"].do("GET", f"{path}/partitioned-stats")["subscriptions"]["s"]["msgBacklog"] == 0
    brokers["third"].do("POST", "namespaces/public/default/unsubscribe/s")
    assert brokers["first"].do("GET", f"{path}/subscriptions") == []


def test_who_asks_about_one_partition_is_sent_to_its_broker(brokers: ManyBrokers, connect, parted: str) -> None:
    produce(brokers, connect, parted, PARTS)
    at, owner = next((at, owner) for at, owner in owners(brokers, parted).items() if owner != "first")
    path = f"/admin/v2/persistent/public/default/{parted}-partition-{at}/stats?excludeConsumers=true"
    status, headers, _ = brokers["first"].ask("GET", path)
    assert (status, headers["location"]) == (307, f"{brokers[owner].http}{path}&authoritative=true")
    assert brokers[owner].do("GET", f"{path}&authoritative=true")["msgInCounter"] == 1


def test_it_grows_and_its_new_partitions_are_served_too(brokers: ManyBrokers, connect, parted: str) -> None:
    brokers["second"].do("POST", f"persistent/public/default/{parted}/partitions", 2 * PARTS)
    produce(brokers, connect, parted, 2 * PARTS)
    whole = brokers["third"].do("GET", f"persistent/public/default/{parted}/partitioned-stats")
    assert (len(whole["partitions"]), whole["msgInCounter"]) == (2 * PARTS, 2 * PARTS)


def test_messages_come_in_order_from_every_partition(brokers: ManyBrokers, connect, parted: str) -> None:
    topic = f"persistent://public/default/{parted}"
    consumer = connect(brokers["third"].url).subscribe(
        topic, "s", initial_position=pulsar.InitialPosition.Earliest
    )
    producer = connect(brokers["first"].url).create_producer(topic)
    sent = [(f"k{at % 7}", b"%d" % at) for at in range(210)]
    for key, payload in sent:
        producer.send_async(payload, lambda *_: None, partition_key=key)
    producer.flush()
    found: dict[str, list[bytes]] = {}
    for _ in sent:
        message = consumer.receive(60_000)
        found.setdefault(message.partition_key(), []).append(message.data())
        consumer.acknowledge(message)
    assert found == {f"k{key}": [payload for at, payload in sent if at == f"k{key}"] for key in range(7)}


def test_it_is_deleted_on_any_broker_with_what_all_of_them_have(
    brokers: ManyBrokers, connect, parted: str
) -> None:
    path = f"persistent/public/default/{parted}"
    client = connect(brokers["second"].url)
    producer = client.create_producer(f"persistent://public/default/{parted}", batching_enabled=False)
    producer.send(b"a")
    assert (
        brokers["third"].ask("DELETE", f"{path}/partitions")[0] == 412
    )  # somebody is connected, to another broker
    producer.close()
    produce(brokers, connect, parted, 2 * PARTS)
    brokers["third"].do("DELETE", f"{path}/partitions")
    assert brokers["third"].ask("GET", f"{path}/partitions")[0] == 404
    name = TopicName.parse(f"persistent://public/default/{parted}")
    assert not [
        at for at in range(PARTS) if brokers.call(lambda at=at: brokers["first"].broker.is_stored(name.at(at)))
    ]
