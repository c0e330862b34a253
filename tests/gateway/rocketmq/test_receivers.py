"""Receivers of one group who wait: whose message is whose, when those that came are more than the first wants."""

import asyncio
from typing import Any

import pytest

from weir.broker.api.consumers import Delivery
from weir.gateway.rocketmq.group_topic import Deadlines, GroupTopic, Link, Want
from weir.model.batch import Batch, BatchFormat
from weir.model.messages import Message
from weir.model.subscriptions import GroupSettings
from weir.model.topics import TopicName
from weir.runtime.real import RealClock
from weir.runtime.tasks import TaskScope
from weir.wire.formats.messages import encode_messages


class OneQueue:
    """A broker, its topic and the consumer of it: what comes is said by the test."""

    here = True
    alive = True
    stored = None

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.come: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()
        self.given_back: list[Delivery] = []

    async def partitions(self, name: TopicName, **_: Any) -> int:
        return 0

    async def owner(self, name: TopicName, **_: Any) -> "OneQueue":
        return self

    async def topic(self, name: TopicName, **_: Any) -> "OneQueue":
        return self

    async def subscribe(self, request: Any) -> "OneQueue":
        assert request.turns
        return self

    def take(self, credit: int) -> list[Delivery]:
        return []

    async def next(self, credit: int) -> list[Delivery]:
        self.asked.set()
        found, self.come = await asyncio.shield(self.come), asyncio.get_running_loop().create_future()
        return found

    def give_back(self, deliveries: list[Delivery]) -> None:
        self.given_back += deliveries

    async def close(self) -> None: ...


@pytest.mark.parametrize("fifo", [True, False])
def test_what_the_first_receiver_does_not_want_is_the_next_ones_unless_it_may_be_of_the_same_message_group(
    fifo: bool,
) -> None:
    async def scenario() -> None:
        queue, clock = OneQueue(), RealClock()
        async with asyncio.timeout(60):
            group = GroupTopic(
                queue,  # type: ignore[arg-type]
                clock,
                TaskScope("test"),
                Deadlines(clock),
                topic=TopicName.parse("orders"),
                group="billing",
                settings=lambda: GroupSettings(fifo=fifo),
                lives=lambda client: True,
            )
            gone, one, other = (
                asyncio.create_task(group.receive(Want("r", count, 60_000), 60)) for count in (3, 1, 2)
            )
            await queue.asked.wait()
            while len(group._line) < 3:
                await asyncio.sleep(0)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            texts = (b"1", b"2", b"3")
            payload = encode_messages([Message(b"g", text) for text in texts])
            queue.come.set_result([Delivery(Batch(0, 3, BatchFormat.MESSAGES, 0, payload))])
            assert [found.offset for found in await one] == [0]
            if fifo:
                assert [(each.batch.base_offset, each.wanted) for each in queue.given_back] == [(0, 0b110)]
                other.cancel()
            else:
                assert [found.offset for found in await other] == [1, 2]
                assert not queue.given_back
            await asyncio.gather(other, return_exceptions=True)

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", range(12))
@pytest.mark.parametrize("fifo", [True, False])
def test_what_comes_for_a_receiver_that_is_leaving_is_the_next_ones(fifo: bool, turns: int) -> None:
    """It leaves in any turn of the loop between the arrival of a message and its answer."""

    async def scenario() -> None:
        queue, clock = OneQueue(), RealClock()
        async with asyncio.timeout(60):
            group = GroupTopic(
                queue,  # type: ignore[arg-type]
                clock,
                TaskScope("test"),
                Deadlines(clock),
                topic=TopicName.parse("orders"),
                group="billing",
                settings=lambda: GroupSettings(fifo=fifo),
                lives=lambda client: True,
            )
            leaving = asyncio.create_task(group.receive(Want("r", 1, 60_000), 60))
            await queue.asked.wait()
            queue.come.set_result(
                [Delivery(Batch(0, 1, BatchFormat.MESSAGES, 0, encode_messages([Message(b"g", b"1")])))]
            )
            for _ in range(turns):
                await asyncio.sleep(0)
            leaving.cancel()
            (outcome,) = await asyncio.gather(leaving, return_exceptions=True)
            while group._serving:
                await asyncio.sleep(0)
            if isinstance(outcome, asyncio.CancelledError):
                (link,) = group.links.values()
                assert not link.pending
                still_in_the_queue = queue.come.done()
                assert queue.given_back or link.spare or still_in_the_queue
            else:
                assert [found.offset for found in outcome] == [0]

    asyncio.run(scenario())


def test_a_handle_from_before_the_queue_moved_is_not_taken_for_another_delivery() -> None:
    async def scenario() -> None:
        queue: Any = OneQueue()
        deadlines = Deadlines(RealClock())
        delivery = Delivery(Batch(0, 1, BatchFormat.MESSAGES, 0, encode_messages([Message(b"g", b"1")])))
        before, after = (Link(0, queue, queue, deadlines, lambda client: True) for _ in range(2))
        (former,) = before.hand_out([delivery], 60_000, "")
        (latter,) = after.hand_out([delivery], 30_000, "")
        assert before.has(former.handle)
        assert after.has(latter.handle)
        assert after.has(former.handle) is None
        deadlines.close()

    asyncio.run(scenario())
