"""Consumer groups: pushed to, with attempts and dead letters; settings and message types by `weir` and REST."""

import subprocess
import sys
import threading
from typing import Any

import pytest
from rocketmq import ConsumeResult, FilterExpression, MessageListener, PushConsumer, SimpleConsumer
from rocketmq.v5.exception import IllegalArgumentException

from weir.model.retry import MAX_DELIVERIES
from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process


class Listener(MessageListener):
    """Says of each message what it is told to, and remembers it."""

    def __init__(self, result: int = ConsumeResult.SUCCESS) -> None:
        self.result = result
        self.found: list[Any] = []
        self.changed = threading.Event()

    def consume(self, message: Any) -> int:
        self.found.append(message)
        self.changed.set()
        return self.result


def weir_command(weir: UpProcess, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "weir.cli.main", *words, "--url", weir.http_url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_push_consumer_gets_messages_and_acknowledges_them(
    weir: UpProcess, clients: Any, name: str, make: Any, until: Any
) -> None:
    listener = Listener()
    clients.producer(name).send(make(name, b"pushed"))
    clients.started(PushConsumer(clients.configuration(), name, listener, {name: FilterExpression()}))
    until(lambda: [one.body for one in listener.found] == [b"pushed"])
    stats = f"/admin/v2/persistent/public/default/{name}/stats"
    until(lambda: clients.ask(weir, stats)["subscriptions"][name]["msgBacklog"] == 0)


def test_a_message_that_fails_as_often_as_its_group_allows_is_a_dead_letter(
    weir: UpProcess, clients: Any, name: str, make: Any
) -> None:
    assert "no" in weir_command(weir, "groups", "settings", name, "--max-attempts", "2")
    clients.producer(name).send(make(name, b"poison"))
    consumer = clients.consumer(name, name, wait_s=3)
    for attempt in (1, 2):
        (found,) = consumer.receive(16, 1)
        assert found.delivery_attempt == attempt
    (dead,) = clients.consumer("undertaker", f"%DLQ%{name}").receive(16, 60)
    assert dead.body == b"poison"
    assert consumer.receive(16, 60) == []


def test_a_push_consumer_of_a_fifo_group_forwards_what_failed_too_often_to_the_dead_letters(
    weir: UpProcess, clients: Any, name: str, make: Any
) -> None:
    weir_command(weir, "groups", "settings", name, "--fifo", "--max-attempts", "2", "--retry", "10ms")
    clients.producer(name).send(make(name, b"poison", message_group="g"))
    listener = Listener(ConsumeResult.FAILURE)
    clients.started(PushConsumer(clients.configuration(), name, listener, {name: FilterExpression()}))
    (dead,) = clients.consumer("undertaker", f"%DLQ%{name}").receive(16, 60)
    assert (dead.body, [one.body for one in listener.found]) == (b"poison", [b"poison"] * 2)


def test_a_topic_takes_the_types_of_messages_that_it_is_for(
    weir: UpProcess, clients: Any, name: str, make: Any
) -> None:
    weir_command(weir, "topics", "create", name)
    assert "fifo" in weir_command(weir, "topics", "types", name, "fifo")
    producer = clients.producer(name)
    producer.send(make(name, message_group="g"))
    with pytest.raises(IllegalArgumentException, match="type"):
        producer.send(make(name))
    assert "normal" not in weir_command(weir, "topics", "types", name)


def test_a_fifo_group_gets_a_batch_of_a_message_group_and_the_next_when_all_of_it_is_done(
    weir: UpProcess, clients: Any, name: str, make: Any
) -> None:
    assert "yes" in weir_command(weir, "groups", "settings", name, "--fifo")
    producer, consumer = clients.producer(name), clients.consumer(name, name)
    for body in (b"a1", b"a2", b"a3", b"a4", b"b1"):
        producer.send(make(name, body, message_group=body[:1].decode()))
    first, second, third = consumer.receive(3, 60)
    assert [first.body, second.body, third.body] == [b"a1", b"a2", b"a3"]
    consumer.ack(third)
    consumer.ack(first)
    assert [one.body for one in consumer.receive(3, 60)] == [b"b1"]
    consumer.ack(second)
    assert [one.body for one in consumer.receive(3, 60)] == [b"a4"]


def test_what_fails_of_a_batch_of_a_message_group_comes_again_in_order_with_its_attempts(
    weir: UpProcess, clients: Any, name: str, make: Any
) -> None:
    weir_command(weir, "groups", "settings", name, "--fifo")
    producer, consumer = clients.producer(name), clients.consumer(name, name)
    for body in (b"1", b"2", b"3", b"4"):
        producer.send(make(name, body, message_group="g"))
    first, second, third = consumer.receive(3, 60)
    consumer.ack(second)
    consumer.change_invisible_duration(third, 1)
    consumer.change_invisible_duration(first, 2)
    found = [(one.body, one.delivery_attempt) for one in consumer.receive(16, 60)]
    assert found == [(b"1", 2), (b"3", 2), (b"4", 1)]


def test_a_client_that_is_connected_is_told_what_changes_for_its_group(
    weir: UpProcess, clients: Any, name: str, until: Any
) -> None:
    told: list[tuple[int, bool]] = []
    changed = threading.Event()

    class Watching(SimpleConsumer):
        def reset_setting(self, settings: Any) -> None:
            super().reset_setting(settings)
            told.append((settings.backoff_policy.max_attempts, settings.subscription.fifo))
            if told[-1] == (3, True):
                changed.set()

    consumer = clients.started(Watching(clients.configuration(), name, {name: FilterExpression()}, 1))
    consumer.receive(1, 60)
    weir_command(weir, "groups", "settings", name, "--max-attempts", "3", "--fifo")
    assert changed.wait(60)
    stats = f"/admin/v2/persistent/public/default/{name}/stats"
    until(
        lambda: (
            clients.ask(weir, stats)["subscriptions"][name]["subscriptionProperties"].get(MAX_DELIVERIES) == "3"
        )
    )
    clients.stop(consumer)
