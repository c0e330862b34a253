"""Delayed and plain messages sent without waiting by the official client: receipts in order, each stored once."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from weir.model.policies import Policies
from weir.model.topics import TopicName

TIMEOUT_MS = 60_000
MESSAGES = 200
#: Milliseconds from now on, over and over: at once, in holding ledgers of different windows, and soon again.
MIXES = {
    "delayed": (300, 400),
    "mixed": (None, 300, None, None, 400),
    "windows": (300, None, 3_600_000 * 24 * 3, 350, None),
}


@pytest.mark.slow
@pytest.mark.parametrize("deduplication", [False, True], ids=["plain", "deduplicated"])
@pytest.mark.parametrize("mix", MIXES)
def test_what_is_sent_without_waiting_has_its_receipts_in_order_and_is_stored_once(
    client: pulsar.Client, weir_broker: Any, talk: Any, topic: str, mix: str, deduplication: bool
) -> None:
    weir_broker.set_policies(topic, Policies(deduplication=deduplication))
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, "p", batching_enabled=False, block_if_queue_full=True)
    answered: list[tuple[int, Any]] = []
    all_answered = threading.Event()
    delays = MIXES[mix]

    def note(number: int) -> Callable[[Any, Any], None]:
        def answer(result: Any, message_id: Any) -> None:
            answered.append((number, result))
            if len(answered) == MESSAGES:
                all_answered.set()

        return answer

    began_ms = int(time.time() * 1000)
    soon = []
    for number in range(MESSAGES):
        delay_ms = delays[number % len(delays)]
        due = {} if delay_ms is None else {"deliver_at": began_ms + delay_ms}
        if delay_ms is None or delay_ms < 60_000:
            soon.append(number)
        producer.send_async(b"%d" % number, note(number), **due)
    assert all_answered.wait(TIMEOUT_MS / 1000)
    assert answered == [(number, pulsar.Result.Ok) for number in range(MESSAGES)]
    got = []
    for _ in soon:
        message = consumer.receive(TIMEOUT_MS)
        got.append(int(message.data()))
        consumer.acknowledge(message)
    assert sorted(got) == soon
    talk.until(lambda: _stored(weir_broker, topic) == (len(soon), MESSAGES - len(soon)))


def _stored(node: Any, topic: str) -> tuple[int, int]:
    """Messages in the log, and messages that are held."""

    async def look() -> tuple[int, int]:
        found = await node.broker.load(TopicName.parse(topic))
        held = 0 if found.stored.held is None else (await found.stored.held.count()).messages
        return found.end_offset, held

    counted: tuple[int, int] = node.call(look)
    return counted
