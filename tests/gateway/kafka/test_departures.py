"""A coordinator dies right after a member left and another joined: the group does not wait for the former one."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from weir.testing.many_brokers import ManyBrokers

PARTITIONS = 6
#: Longer than `until` waits: a group that waits for the end of a session makes the test fail.
SESSION_MS = 180_000
MOST_S = 60.0


class Member:
    """A consumer that polls on a thread of its own."""

    def __init__(self, bootstrap: str, topic: str, group: str, strategy: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 500,
                "partition.assignment.strategy": strategy,
            }
        )
        self.assigned: set[int] = set()
        self._stopped = threading.Event()
        self._consumer.subscribe([topic], on_assign=self._gets, on_revoke=self._gives, on_lost=self._gives)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _gets(self, _: Any, parts: list[TopicPartition]) -> None:
        self.assigned |= {part.partition for part in parts}

    def _gives(self, _: Any, parts: list[TopicPartition]) -> None:
        self.assigned -= {part.partition for part in parts}

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._consumer.poll(0.05)
        self._consumer.close()

    def leave(self) -> None:
        """Answered by the coordinator when it returns."""
        self._stopped.set()
        self._thread.join()


@pytest.fixture
def brokers() -> Iterator[ManyBrokers]:
    many = ManyBrokers(spread=True).start()
    yield many
    many.stop()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_divides_its_partitions_soon_after_a_departure_and_the_death_of_its_coordinator(
    brokers: ManyBrokers, topic: str, strategy: str, until: Callable[[Callable[[], Any]], None]
) -> None:
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(MOST_S)
    members = [Member(brokers.bootstrap, topic, topic, strategy) for _ in range(3)]

    def divided() -> bool:
        return sorted(part for one in members for part in one.assigned) == list(range(PARTITIONS)) and all(
            one.assigned for one in members
        )

    try:
        until(divided)
        port = admin.describe_consumer_groups([topic])[topic].result(MOST_S).coordinator.port
        coordinator = next(name for name, one in brokers.running.items() if one.kafka.advertised[1] == port)
        members.pop(0).leave()
        members.append(Member(brokers.bootstrap, topic, topic, strategy))
        brokers.lose(coordinator)
        until(divided)
    finally:
        for one in members:
            one.leave()
