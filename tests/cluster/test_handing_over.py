"""Bundles that change hands under the official client: nothing is lost, and nothing changes its order."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pulsar
import pytest

from weir.model.topics import TopicName
from weir.testing.many_brokers import ManyBrokers

#: Each would be chosen for a bundle of the default namespace at least.
NAMES = ("first", "second", "third")
TIMEOUT_MS = 60_000
ROUND = 100
ROUNDS = 4


def owner(brokers: ManyBrokers, topic: str) -> str:
    """Who says that it has the topic itself: what brokers know may be a moment old."""
    name = TopicName.parse(topic)
    found: list[str] = []

    def known() -> bool:
        found[:] = [one for one in brokers.running if brokers[one].broker.owner_now(name).here]
        return len(found) == 1

    until(known)
    return found[0]


def move(brokers: ManyBrokers, topic: str) -> str:
    """Give the topic's bundle to the next broker; its name."""
    name, here = TopicName.parse(topic), owner(brokers, topic)
    names = list(brokers.running)
    to = names[(names.index(here) + 1) % len(names)]
    bundle = brokers[here].broker.bundles.bundle_of(name).range
    address = brokers[to].http.removeprefix("http://")
    path = f"namespaces/public/default/{bundle}/unload?destinationBroker={address}"
    # One that was given it a moment ago may know so, and not have it in hand: its client is sent to it again.
    until(lambda: brokers[here].ask("PUT", path)[0] == 204)
    assert owner(brokers, topic) == to
    return to


def connected(brokers: ManyBrokers, topic: str) -> tuple[int, int]:
    """How many producers and consumers the topic has where it is now."""
    one = brokers[owner(brokers, f"persistent://public/default/{topic}")]
    stats = one.do("GET", f"persistent/public/default/{topic}/stats")
    return len(stats["publishers"]), len(stats["subscriptions"]["s"]["consumers"])


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_MS / 1000
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


class Sender:
    """Sends numbered messages with keys, and counts receipts."""

    def __init__(self, client: pulsar.Client, topic: str, **options: Any) -> None:
        self._producer = client.create_producer(topic, block_if_queue_full=True, **options)
        self.results: list[Any] = []
        self.sent = 0

    def send(self, count: int) -> None:
        for _ in range(count):
            key = f"k{self.sent % 5}"
            self._producer.send_async(
                b"%06d" % self.sent, lambda result, _: self.results.append(result), partition_key=key
            )
            self.sent += 1

    def flush(self) -> None:
        self._producer.flush()
        assert set(self.results) == {pulsar.Result.Ok}


def received(consumers: list[pulsar.Consumer], count: int) -> list[dict[str, list[bytes]]]:
    """What each consumer got first, by key, until together they have as many different messages."""
    found: list[dict[str, list[bytes]]] = [{} for _ in consumers]
    seen: set[bytes] = set()
    silent = 0
    while len(seen) < count:
        silent += 1
        assert silent < TIMEOUT_MS // 10, f"{count - len(seen)} messages did not come"
        for consumer, mine in zip(consumers, found, strict=True):
            with suppress(pulsar.Timeout):
                while len(seen) < count:
                    message = consumer.receive(10)
                    silent = 0
                    consumer.acknowledge(message)
                    if message.data() not in seen:
                        seen.add(message.data())
                        mine.setdefault(message.partition_key(), []).append(message.data())
    return found


BATCHES = {
    "batches": {"batching_enabled": True, "batching_max_messages": 10},
    "single messages": {"batching_enabled": False},
    "batches by key": {
        "batching_enabled": True,
        "batching_type": pulsar.BatchingType.KeyBased,
        "batching_max_messages": 20,
    },
}
KINDS = {
    "shared": (pulsar.ConsumerType.Shared, 2, "batches"),
    "failover": (pulsar.ConsumerType.Failover, 2, "single messages"),
    "exclusive": (pulsar.ConsumerType.Exclusive, 1, "batches"),
    "key-shared": (pulsar.ConsumerType.KeyShared, 2, "batches by key"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_or_reordered(
    brokers: ManyBrokers, connect: Callable[..., pulsar.Client], unique: str, kind: str
) -> None:
    topic = f"persistent://public/default/{unique}"
    type_, count, batching = KINDS[kind]
    consumers = [
        connect(brokers["second"].url).subscribe(
            topic,
            "s",
            consumer_type=type_,
            initial_position=pulsar.InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=100,
        )
        for _ in range(count)
    ]
    sender = Sender(connect(brokers["first"].url), topic, **BATCHES[batching])
    for _ in range(ROUNDS):
        sender.send(ROUND)
        move(brokers, topic)
        sender.send(ROUND)
    sender.flush()
    found = received(consumers, sender.sent)
    if kind != "shared":  # each key's messages in the order of their sending, whichever consumer had the key when
        for mine in found:
            assert all(of_key == sorted(of_key) for of_key in mine.values())
    until(lambda: connected(brokers, unique) == (1, count))  # none of them is left behind


def test_metrics_have_what_a_broker_serves_and_nothing_else(
    brokers: ManyBrokers, connect: Callable[..., pulsar.Client], unique: str
) -> None:
    topic = f"persistent://public/default/{unique}"
    sender = Sender(connect(brokers["first"].url), topic)
    sender.send(1)
    sender.flush()

    def shown() -> list[str]:
        return [name for name, one in brokers.running.items() if topic.encode() in one.ask("GET", "/metrics")[2]]

    assert shown() == [owner(brokers, topic)]
    to = move(brokers, topic)
    sender.send(1)
    sender.flush()
    assert shown() == [to]
