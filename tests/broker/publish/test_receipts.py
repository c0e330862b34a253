"""Receipts of a producer come in the order of its sends, whichever way each batch takes, errors among them."""

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from weir.broker.api.producers import Receipt
from weir.broker.publish.publish_order import ReceiptOrder
from weir.model.errors import MessageTooLargeError, StreamBusyError
from weir.model.policies import Policies

DAY_MS = 24 * 3_600_000


@pytest.mark.parametrize("deduplication", [False, True])
def test_receipts_come_in_the_order_of_sends_through_log_and_holding_area(
    run: Callable, deduplication: bool
) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic(policies=Policies(deduplication=deduplication, max_message_bytes=10))
        producer = await bench.producer(topic, "p")
        now = bench.runtime.clock.wall_ms()
        told: list[int] = []
        receipts = []
        #: The area opens with the first one to be held; the others lie in several of its ledgers.
        for number in range(60):
            due = {1: now + 5000, 3: now + 3 * DAY_MS, 4: now + 60_000}.get(number % 6)
            text = f"{number}: much too large" if number % 10 == 7 else f"{number}"
            sequence = number - 1 if deduplication and number % 10 == 5 else number
            receipt = producer.publish(bench.out(text, deliver_at_ms=due, sequence=sequence))
            receipt.add_done_callback(lambda _, number=number: told.append(number))
            receipts.append(receipt)
        results = await asyncio.gather(*receipts, return_exceptions=True)
        await asyncio.sleep(0)
        assert told == list(range(60))
        refused = [number for number, result in enumerate(results) if isinstance(result, MessageTooLargeError)]
        assert refused == [7, 17, 27, 37, 47, 57]
        repeated = [number for number, result in enumerate(results) if getattr(result, "duplicate", False)]
        assert repeated == ([5, 15, 25, 35, 45, 55] if deduplication else [])
        await topic.close()

    run(scenario)


def test_a_batch_that_cannot_be_held_is_told_in_its_turn(run: Callable) -> None:
    async def scenario(bench) -> None:
        topic = await bench.topic()
        producer = await bench.producer(topic)
        now = bench.runtime.clock.wall_ms()
        told: list[int] = []
        holding = topic.publisher.holding

        def refused(batch, due_ms):
            held = asyncio.get_running_loop().create_future()
            held.set_exception(StreamBusyError("no room"))
            return held

        sent = [producer.publish(bench.out("0")), producer.publish(bench.out("1", deliver_at_ms=now + 5000))]
        holding.hold, hold = refused, holding.hold
        sent.append(producer.publish(bench.out("2", deliver_at_ms=now + 5000)))
        holding.hold = hold
        sent += [producer.publish(bench.out("3", deliver_at_ms=now + 5000)), producer.publish(bench.out("4"))]
        for number, receipt in enumerate(sent):
            receipt.add_done_callback(lambda _, number=number: told.append(number))
        results = await asyncio.gather(*sent, return_exceptions=True)
        await asyncio.sleep(0)
        assert told == [0, 1, 2, 3, 4]
        assert [isinstance(result, Exception) for result in results] == [False, False, True, False, False]
        await topic.close()

    run(scenario)


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_ends_first_is_told_in_order(seed: int) -> None:
    rng, order = Random(seed), ReceiptOrder()
    told: list[int] = []
    under_way: list[tuple[bool, asyncio.Future[Receipt]]] = []
    for number in range(40):
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        in_log = rng.random() < 0.6
        given = order.appended(receipt) if in_log else order.behind(receipt)
        given.add_done_callback(lambda done, number=number: (done.exception(), told.append(number)))
        under_way.append((in_log, receipt))
        while rng.random() < 0.5 and under_way:
            _end_one(rng, under_way)
        if rng.random() < 0.3:
            await asyncio.sleep(0)
    while under_way:
        _end_one(rng, under_way)
    for _ in range(3):
        await asyncio.sleep(0)
    assert told == list(range(40))


def _end_one(rng: Random, under_way: "list[tuple[bool, asyncio.Future[Receipt]]]") -> None:
    """Any that is not in the log, or the first that is."""
    first = next((at for at, (in_log, _) in enumerate(under_way) if in_log), None)
    choices = [at for at, (in_log, _) in enumerate(under_way) if not in_log or at == first]
    _, receipt = under_way.pop(rng.choice(choices))
    if rng.random() < 0.2:
        receipt.set_exception(StreamBusyError("no"))
        receipt.exception()
    else:
        receipt.set_result(Receipt(0, (0, 0)))
