"""A half message of which nothing is heard: a live producer is asked, by RocketMQ's own Python client."""

from collections.abc import Iterator
from typing import Any

import pytest
from rocketmq import TransactionChecker, TransactionResolution

from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def weir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    up = UpProcess(tmp_path_factory.mktemp("weir"), "half.recovery=100ms", "half.check_interval=200ms")
    up.start()
    yield up
    up.close()


class Checker(TransactionChecker):
    """Commits what it is asked about, but for those that say no."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def check(self, message: Any) -> int:
        self.asked.append(message)
        return TransactionResolution.ROLLBACK if message.body == b"no" else TransactionResolution.COMMIT


def test_a_producer_is_asked_what_became_of_its_half_messages(
    clients: Any, name: str, make: Any, until: Any
) -> None:
    checker = Checker()
    producer, consumer = clients.producer(name, checker=checker), clients.consumer("g", name)
    for body in (b"no", b"yes"):
        producer.send(make(name, body, tag="t"), producer.begin_transaction())
    (found,) = consumer.receive(16, 60)
    assert (found.body, found.tag) == (b"yes", "t")
    until(lambda: {b"no", b"yes"} <= {one.body for one in checker.asked})
    assert {one.tag for one in checker.asked} == {"t"}
    producer.send(make(name, b"last"))
    assert [one.body for one in consumer.receive(16, 60)] == [b"last"]


def test_another_producer_of_the_topic_is_asked_when_the_first_is_gone(clients: Any, name: str, make: Any) -> None:
    gone = clients.producer(name, checker=Checker())
    gone.send(make(name, b"yes"), gone.begin_transaction())
    clients.stop(gone)
    clients.producer(name, checker=Checker())
    assert [one.body for one in clients.consumer("g", name).receive(16, 60)] == [b"yes"]
