"""Any broker lists the topics of the whole cluster, and none loads a topic for it."""

from functools import partial
from typing import Any

from weir.model.topics import TopicName
from weir.testing.many_brokers import ManyBrokers

#: Each would be chosen for a bundle of the default namespace at least.
NAMES = ("first", "second", "third")
PARTS = 12


def listed(brokers: ManyBrokers, by: str, topic: str) -> Any:
    found = brokers[by].do("GET", "/admin/weir/v1/overviews/public/default")["topics"][topic]
    return {name: part.get("messages", 0) for name, part in found["partitions"].items()}


def loaded(brokers: ManyBrokers) -> list[TopicName]:
    return [topic.name for name in NAMES for topic in brokers[name].broker.loaded]


def test_every_broker_lists_all_partitions_whoever_has_them_and_whether_they_are_loaded(
    brokers: ManyBrokers, unique: str
) -> None:
    topic = f"persistent://public/default/{unique}"
    brokers["second"].do("PUT", f"persistent/public/default/{unique}/partitions", PARTS)
    parts = [TopicName.parse(topic).at(number) for number in range(PARTS)]
    for number, part in enumerate(parts):
        path = f"/admin/weir/v1/messages/persistent/public/default/{part.local_with_partition}"
        for _ in range(number):
            brokers[brokers.owner(part)].do("POST", path, {"value": "eA=="})
    wanted = {str(part): number for number, part in enumerate(parts)}
    assert len({brokers.owner(part) for part in parts}) == 3
    for name in NAMES:
        assert listed(brokers, name, topic) == wanted
    for name in NAMES:
        for part in [one.name for one in brokers[name].broker.loaded]:
            brokers.call(partial(brokers[name].broker.unload, part))
    assert loaded(brokers) == []
    for name in NAMES:
        assert listed(brokers, name, topic) == wanted
    assert loaded(brokers) == []
