"""The first batch of a transaction is verified with a coordinator that is elsewhere, before it is stored."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weir.model.batch import Stamp
from weir.model.errors import NotInTransactionError, TransactionStateError, WeirError
from weir.model.topics import TopicName
from weir.model.transactions import Fate

P = 7


class RemoteCoordinators:
    """A coordinator that answers when the test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers: asyncio.Queue[int | WeirError] = asyncio.Queue()
        self.confirms = True

    def admit(self, stamp: Stamp, topic: TopicName) -> int | WeirError | None:
        return None

    async def verify(self, stamp: Stamp, topic: TopicName) -> int:
        self.asked += 1
        answer = await self.answers.get()
        if isinstance(answer, WeirError):
            raise answer
        return answer

    async def confirm_end(self, producer_id: int, topic: TopicName, *, commit: bool) -> None:
        if not self.confirms:
            raise TransactionStateError("it does not end so")

    async def fate(self, producer_id: int, topic: TopicName, seen_ms: int) -> Fate:
        return Fate.OPEN


async def stage(bench: Any) -> tuple[RemoteCoordinators, Any, Callable[..., Any]]:
    keeper, broker = RemoteCoordinators(), await bench.broker()
    broker._context.transactions.kept_by(keeper)
    topic = await broker.load(TopicName.parse("t"))
    producer = await bench.producer(topic)

    def send(sequence: int, text: str) -> Any:
        return producer.publish(bench.out(text, stamp=Stamp(P, 0, sequence), transactional=True))

    return keeper, topic, send


def test_what_is_sent_meanwhile_waits_and_is_stored_in_its_order(run: Callable[..., None]) -> None:
    async def scenario(bench: Any) -> None:
        keeper, topic, send = await stage(bench)
        receipts = [send(number, str(number)) for number in range(3)]
        await bench.runtime.clock.sleep(1)
        assert topic.end_offset == 0
        keeper.answers.put_nowait(1)
        assert [(await receipt).offset for receipt in receipts] == [0, 1, 2]
        assert (await send(3, "3")).offset == 3
        assert keeper.asked == 1
        await topic.end_transaction(P, 0, commit=True, round=1)
        receipt = send(4, "of the next one")
        keeper.answers.put_nowait(2)
        assert (await receipt).offset == 5
        assert keeper.asked == 2

    run(scenario)


def test_nothing_is_stored_of_what_the_coordinator_refuses(run: Callable[..., None]) -> None:
    async def scenario(bench: Any) -> None:
        keeper, topic, send = await stage(bench)
        receipts = [send(number, str(number)) for number in range(3)]
        keeper.answers.put_nowait(NotInTransactionError("it is over"))
        for receipt in receipts:
            with pytest.raises(NotInTransactionError):
                await receipt
        assert topic.end_offset == 0
        receipt = send(0, "again")
        keeper.answers.put_nowait(1)
        assert (await receipt).offset == 0

    run(scenario)


def test_a_marker_that_comes_between_asking_and_storing_makes_the_answer_void(run: Callable[..., None]) -> None:
    """The answer was true when it was given: the transaction was open. By now it has ended, without this batch."""

    async def scenario(bench: Any) -> None:
        keeper, topic, send = await stage(bench)
        receipt = send(0, "late")
        await bench.runtime.clock.sleep(1)
        ending = asyncio.ensure_future(topic.end_transaction(P, 0, commit=False, round=1))
        await bench.runtime.clock.sleep(1)
        assert not ending.done(), "it is not known yet whether there will be something to end"
        keeper.answers.put_nowait(1)
        keeper.answers.put_nowait(NotInTransactionError("it is over"))
        with pytest.raises(NotInTransactionError):
            await receipt
        await ending
        assert keeper.asked == 2
        assert topic.stable_offset == topic.end_offset == 0

    run(scenario)


def test_a_marker_is_of_the_open_transaction_or_of_a_later_coordinator_or_left_out(
    run: Callable[..., None],
) -> None:
    async def scenario(bench: Any) -> None:
        keeper, topic, send = await stage(bench)
        receipt = send(0, "m")
        keeper.answers.put_nowait(5)
        await receipt
        await topic.end_transaction(P, 0, commit=True, round=4)
        assert topic.stable_offset == 0
        await topic.end_transaction(P, 0, commit=False, round=6)
        assert topic.stable_offset == topic.end_offset == 2

    run(scenario)


def test_of_a_transaction_that_was_open_before_the_coordinator_confirms_the_marker(
    run: Callable[..., None],
) -> None:
    async def scenario(bench: Any) -> None:
        keeper, topic, send = await stage(bench)
        receipt = send(0, "m")
        keeper.answers.put_nowait(5)
        await receipt
        keeper, topic, _ = await stage(bench)  # another broker has the topic now
        keeper.confirms = False
        with pytest.raises(TransactionStateError):
            await topic.end_transaction(P, 0, commit=True, round=4)
        assert topic.stable_offset == 0
        keeper.confirms = True
        await topic.end_transaction(P, 0, commit=False, round=6)
        assert topic.stable_offset == topic.end_offset == 2

    run(scenario)
