"""RocketMQ's own Python client sends, receives, acknowledges and keeps messages invisible."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rocketmq.v5.exception import BadRequestException

from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[3]
_MISSING = 77


def test_what_is_sent_is_received_with_all_that_was_said_of_it(clients: Any, name: str, make: Any) -> None:
    producer = clients.producer(name)
    receipt = producer.send(make(name, b"a body", tag="tag", keys="one", properties={"colour": "green"}))
    (found,) = clients.consumer("g", name).receive(16, 60)
    assert (found.body, found.tag, found.keys, found.properties) == (
        b"a body",
        "tag",
        {"one"},
        {"colour": "green"},
    )
    assert (found.message_id, found.delivery_attempt, found.topic) == (receipt.message_id, 1, name)
    assert not found.corrupted
    assert abs(found.born_timestamp / 1000 - time.time()) < 600


def test_a_message_that_is_acknowledged_does_not_come_again(clients: Any, name: str, make: Any) -> None:
    producer, consumer = clients.producer(name), clients.consumer("g", name)
    for body in (b"1", b"2"):
        producer.send(make(name, body))
    found = consumer.receive(1, 60)
    found += consumer.receive(1, 60)
    assert [one.body for one in found] == [b"1", b"2"]
    for one in found:
        consumer.ack(one)
    producer.send(make(name, b"3"))
    assert [one.body for one in consumer.receive(16, 60)] == [b"3"]


def test_a_message_that_is_not_acknowledged_in_time_comes_again_and_is_counted(
    clients: Any, name: str, make: Any
) -> None:
    clients.producer(name).send(make(name))
    consumer = clients.consumer("g", name)
    (first,) = consumer.receive(16, 1)
    (second,) = consumer.receive(16, 60)
    assert (first.message_id, first.delivery_attempt) == (second.message_id, 1)
    assert second.delivery_attempt == 2
    with pytest.raises(BadRequestException, match="expired"):
        consumer.ack(first)
    consumer.ack(second)


def test_the_time_of_a_message_can_be_changed(clients: Any, name: str, make: Any) -> None:
    clients.producer(name).send(make(name))
    consumer = clients.consumer("g", name)
    (found,) = consumer.receive(16, 3600)
    before = found.receipt_handle
    consumer.change_invisible_duration(found, 1)
    assert found.receipt_handle != before
    (again,) = consumer.receive(16, 60)
    assert again.delivery_attempt == 2
    consumer.ack(again)


def test_each_group_gets_every_message(clients: Any, name: str, make: Any) -> None:
    clients.producer(name).send(make(name))
    for group in ("first", "second"):
        assert len(clients.consumer(group, name).receive(16, 60)) == 1


def test_a_poll_ends_when_a_message_comes(clients: Any, name: str, make: Any) -> None:
    consumer = clients.consumer("g", name)
    waiting = consumer.receive_async(16, 60)
    clients.producer(name).send(make(name, b"late"))
    assert [one.body for one in waiting.result(timeout=60)] == [b"late"]


def test_two_consumers_of_a_group_share_what_there_is(clients: Any, name: str, make: Any) -> None:
    producer = clients.producer(name)
    for number in range(20):
        producer.send(make(name, b"%d" % number))
    consumers = [clients.consumer("g", name), clients.consumer("g", name)]
    bodies = [one.body for consumer in consumers for one in consumer.receive(10, 60)]
    assert sorted(bodies, key=int) == [b"%d" % number for number in range(20)]


# --- other languages --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "steps"),
    [
        (
            "java",
            {
                "received",
                "described",
                "redelivered",
                "acknowledged",
                "ordered",
                "delayed",
                "committed",
                "pushed",
                "asked for its stack",
                "tried a message",
                "failed in order",
                "forwarded to dead letters",
                "pushed lite topics",
                "told of a lite topic that it lost",
                "told of a lite topic that is deleted",
            },
        ),
        ("node", {"received", "described", "acknowledged", "began at the last message of a lite topic"}),
        ("go", {"received", "described", "acknowledged"}),
    ],
)
def test_a_client_in_another_language_finds_everything_right(
    weir: UpProcess, language: str, steps: set[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.rocketmq_clients", language, "--server", weir.rocketmq],
        cwd=ROOT,
        env=os.environ | {"WEIR_ADMIN": weir.http_url},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == _MISSING:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert steps <= {line.partition(" ")[2] for line in done.stdout.splitlines()}
