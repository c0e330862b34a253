"""Kinds of messages, by RocketMQ's own Python client: delayed, in a transaction, in groups, filtered, lite."""

import json
import threading
import time
import urllib.request
from typing import Any

import pytest
from rocketmq import (
    ConsumeResult,
    FilterExpression,
    LitePushConsumer,
    LiteSimpleConsumer,
    MessageListener,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType
from rocketmq.v5.exception import BadRequestException, LiteSubscriptionQuotaExceededException

from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process


class Checker(TransactionChecker):
    """Answers what it is told to, and remembers what it was asked."""

    def __init__(self, answer: int = TransactionResolution.COMMIT) -> None:
        self.answer = answer
        self.asked: list[Any] = []
        self.was_asked = threading.Event()

    def check(self, message: Any) -> int:
        self.asked.append(message)
        self.was_asked.set()
        return self.answer


def test_a_delayed_message_comes_at_its_moment_and_not_before(clients: Any, name: str, make: Any) -> None:
    producer, consumer = clients.producer(name), clients.consumer("g", name)
    moment = int(time.time()) + 2
    receipt = producer.send(make(name, b"later", delivery_timestamp=moment))
    producer.send(make(name, b"now"))
    assert receipt.recall_handle
    assert [one.body for one in consumer.receive(16, 60)] == [b"now"]
    (found,) = consumer.receive(16, 60)
    assert (found.body, found.message_id) == (b"later", receipt.message_id)
    assert time.time() >= moment


def test_a_delayed_message_that_is_recalled_never_comes(clients: Any, name: str, make: Any) -> None:
    producer, consumer = clients.producer(name), clients.consumer("g", name)
    receipt = producer.send(make(name, b"no", delivery_timestamp=int(time.time()) + 3600))
    assert producer.recall_message(name, receipt.recall_handle) == receipt.message_id
    with pytest.raises(BadRequestException):
        producer.recall_message(name, receipt.recall_handle)
    with pytest.raises(BadRequestException):
        producer.recall_message(name, "no handle")
    producer.send(make(name, b"yes"))
    assert [one.body for one in consumer.receive(16, 60)] == [b"yes"]


def test_a_transaction_is_seen_when_it_is_committed_and_never_when_it_is_rolled_back(
    clients: Any, name: str, make: Any
) -> None:
    producer, consumer = clients.producer(name, checker=Checker()), clients.consumer("g", name)
    committed, rolled_back = producer.begin_transaction(), producer.begin_transaction()
    producer.send(make(name, b"yes"), committed)
    producer.send(make(name, b"no"), rolled_back)
    producer.send(make(name, b"plain"))
    assert [one.body for one in consumer.receive(16, 60)] == [b"plain"]
    rolled_back.rollback()
    committed.commit()
    assert [one.body for one in consumer.receive(16, 60)] == [b"yes"]
    with pytest.raises(Exception, match="rolled back before"):
        rolled_back.commit()


def test_messages_of_a_group_come_in_their_order(clients: Any, name: str, make: Any) -> None:
    producer, consumer = clients.producer(name), clients.consumer("g", name)
    for number in range(10):
        producer.send(make(name, b"%d" % number, message_group=f"group-{number % 2}"))
    found: list[Any] = []
    while len(found) < 10:
        found += consumer.receive(16, 60)
    for group in ("group-0", "group-1"):
        bodies = [int(one.body) for one in found if one.message_group == group]
        assert bodies == sorted(bodies)
        assert len(bodies) == 5


def test_a_filter_by_tags_lets_its_tags_through(clients: Any, name: str, make: Any) -> None:
    producer = clients.producer(name)
    for tag in ("a", "b", "c"):
        producer.send(make(name, tag.encode(), tag=tag))
    consumer = clients.consumer("g", name, expression=FilterExpression("a || c"))
    assert [one.body for one in consumer.receive(16, 60)] == [b"a", b"c"]


def test_a_filter_by_sql_looks_at_properties(clients: Any, name: str, make: Any) -> None:
    producer = clients.producer(name)
    for number in range(5):
        producer.send(make(name, b"%d" % number, properties={"number": str(number), "colour": "red"}))
    wanted = FilterExpression("colour = 'red' AND number BETWEEN 2 AND 3", FilterType.SQL)
    consumer = clients.consumer("g", name, expression=wanted)
    assert [one.body for one in consumer.receive(16, 60)] == [b"2", b"3"]


def test_a_wrong_filter_is_refused(clients: Any, name: str) -> None:
    wrong = FilterExpression("number >", FilterType.SQL)
    with pytest.raises(BadRequestException) as refused:
        clients.consumer("g", name, expression=wrong).receive(16, 60)
    assert refused.value.code == 40010


def test_a_lite_consumer_gets_the_lite_topics_that_it_wants(
    clients: Any, name: str, make: Any, until: Any
) -> None:
    producer = clients.producer(name)
    consumer = clients.started(LiteSimpleConsumer(name, clients.configuration(), "g", 20))

    def subscribed() -> bool:
        """It refuses until the server's settings have come."""
        try:
            consumer.subscribe_lite("one")
        except LiteSubscriptionQuotaExceededException:
            return False
        return True

    until(subscribed)
    consumer.subscribe_lite_all()  # 5.1.2 sends the letters of one name, and whole names only here
    for lite in ("one", "two"):
        producer.send(make(name, lite.encode(), lite_topic=lite))
    (found,) = consumer.receive(16, 60)
    assert (found.body, found.lite_topic) == (b"one", "one")
    consumer.ack(found)
    consumer.subscribe_lite("two")
    consumer.unsubscribe_lite("one")
    consumer.subscribe_lite_all()
    assert [one.body for one in consumer.receive(16, 60)] == [b"two"]


def test_a_lite_push_consumer_is_pushed_its_lite_topics(clients: Any, name: str, make: Any, until: Any) -> None:
    class Listener(MessageListener):
        def __init__(self) -> None:
            self.found: list[tuple[bytes, str]] = []

        def consume(self, message: Any) -> int:
            self.found.append((message.body, message.lite_topic))
            return ConsumeResult.SUCCESS

    producer, listener = clients.producer(name), Listener()
    consumer = clients.started(LitePushConsumer(clients.configuration(), "g", name, listener))

    def subscribed() -> bool:
        try:
            consumer.subscribe_lite("1")  # 5.1.2 sends the letters of a name
        except LiteSubscriptionQuotaExceededException:
            return False
        return True

    until(subscribed)
    producer.send(make(name, b"not wanted", lite_topic="2"))
    producer.send(make(name, b"first", lite_topic="1"))
    until(lambda: listener.found == [(b"first", "1")])
    consumer.subscribe_lite("2")
    until(lambda: listener.found == [(b"first", "1"), (b"not wanted", "2")])


def test_a_topic_that_is_made_on_the_fly_takes_every_type(clients: Any, name: str, make: Any) -> None:
    producer = clients.producer(name, checker=Checker())
    producer.send(make(name, b"normal"))
    producer.send(make(name, b"fifo", message_group="g"))
    producer.send(make(name, b"delay", delivery_timestamp=int(time.time())))
    producer.send(make(name, b"priority", priority=3))
    transaction = producer.begin_transaction()
    producer.send(make(name, b"transaction"), transaction)
    transaction.commit()
    consumer = clients.consumer("g", name)
    found: set[bytes] = set()
    while len(found) < 5:
        found |= {one.body for one in consumer.receive(16, 60)}
    assert found == {b"normal", b"fifo", b"delay", b"priority", b"transaction"}


def make_levels(weir: UpProcess, name: str, passed: int) -> None:
    """A topic with nine of them; so many messages of higher ones are delivered before a lower one has its turn."""
    path, policy = f"{weir.http_url}/admin/v2/persistent/public/default/{name}", {"levels": 9, "passed": passed}
    for method, where, body in (("PUT", "", b""), ("POST", "/priority", json.dumps(policy).encode())):
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(path + where, body, headers, method=method)
        urllib.request.urlopen(request, timeout=60).close()


def test_a_low_priority_has_its_turn_whatever_comes_above_it(
    weir: UpProcess, clients: Any, name: str, make: Any
) -> None:
    make_levels(weir, name, 3)
    producer, consumer = clients.producer(name), clients.consumer("g", name)
    for priority in (0, 0, *[9] * 10):
        producer.send(make(name, b"%d" % priority, priority=priority))
    found = [one.priority for _ in range(12) for one in consumer.receive(1, 3600)]
    assert sorted(found) == [0, 0, *[9] * 10]
    turns = [at for at, priority in enumerate(found) if priority == 0]
    assert turns == [3, 7], found


def test_of_what_is_ready_the_highest_priority_comes_first(
    weir: UpProcess, clients: Any, name: str, make: Any
) -> None:
    make_levels(weir, name, 100)
    producer, consumer = clients.producer(name), clients.consumer("g", name)
    for priority in (1, 9, 5, 9):
        producer.send(make(name, b"%d" % priority, priority=priority))
    found = [one for _ in range(4) for one in consumer.receive(1, 3600)]
    assert [one.body for one in found] == [b"9", b"9", b"5", b"1"]
    assert [one.priority for one in found] == [9, 9, 5, 1]
