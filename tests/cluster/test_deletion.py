"""Topics whose partitions are on several brokers are deleted completely, by any broker."""

from typing import Any

import pytest

from weir.model.errors import MetaUnavailableError
from weir.model.topics import TopicName
from weir.testing.many_brokers import ManyBrokers

#: Each would be chosen for a bundle of the default namespace at least.
NAMES = ("first", "second", "third")
PARTS = 12


@pytest.fixture
def topic(brokers: ManyBrokers, connect, unique: str) -> TopicName:
    """Its partitions are on all brokers, with a message in each."""
    name = TopicName.parse(f"persistent://public/default/{unique}")
    brokers["first"].do("PUT", f"persistent/public/default/{unique}/partitions", PARTS)
    client = connect(brokers["first"].url)
    producer = client.create_producer(str(name), batching_enabled=False)
    for at in range(2 * PARTS):
        producer.send(b"%d" % at)
    client.close()
    assert {brokers["first"].broker.owner_now(name.at(at)).broker_id for at in range(PARTS)} == set(
        brokers.running
    )
    return name


def left(brokers: ManyBrokers, name: TopicName) -> int:
    """Of how many partitions anything is stored."""

    async def count() -> int:
        return sum([await brokers["first"].broker.is_stored(name.at(at)) for at in range(PARTS)])

    found: int = brokers.call(count)
    return found


def path(name: TopicName) -> str:
    return f"persistent/{name.namespace}/{name.local}/partitions"


def test_any_broker_deletes_a_topic_of_all(brokers: ManyBrokers, topic: TopicName) -> None:
    assert left(brokers, topic) == PARTS
    brokers["third"].do("DELETE", path(topic))
    assert left(brokers, topic) == 0
    for one in brokers.running.values():
        assert one.ask("DELETE", path(topic))[0] == 404
        assert not any(served.name.base == topic for served in one.broker.loaded)


def test_one_that_is_used_on_another_broker_stays(brokers: ManyBrokers, connect, topic: TopicName) -> None:
    producer = connect(brokers["first"].url).create_producer(str(topic.at(7)))
    assert brokers["second"].ask("DELETE", path(topic))[0] == 412
    producer.send(b"it is still there")
    brokers["second"].do("DELETE", f"{path(topic)}?force=true")
    assert left(brokers, topic) == 0


def test_a_deletion_that_is_cut_short_goes_on_with_whoever_is_asked(
    brokers: ManyBrokers, monkeypatch: Any, topic: TopicName
) -> None:
    """The broker that deletes has the first partitions erased, and fails before it is done."""
    first = "first"
    deleter = brokers[first].broker.deletions
    erase = deleter.erase

    async def fail(part: TopicName) -> None:
        if part.partition == PARTS // 2:
            raise MetaUnavailableError("not now")
        await erase(part)

    with monkeypatch.context() as patch:
        patch.setattr(deleter, "erase", fail)
        assert brokers[first].ask("DELETE", path(topic))[0] == 503
    assert 0 < left(brokers, topic) < PARTS
    other = next(name for name in brokers.running if name != first)
    brokers[other].do("DELETE", path(topic))
    assert left(brokers, topic) == 0

    async def record() -> Any:
        return await brokers[other].composed.registry.confirm_topic(topic)

    assert brokers.call(record) is None
    brokers[other].do("PUT", path(topic), PARTS)
    assert brokers[first].do("GET", f"{path(topic)[:-11]}/partitioned-stats")["msgInCounter"] == 0
