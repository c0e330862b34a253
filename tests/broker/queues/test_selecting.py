"""Consumers of a queue with filters of their own: each gets what it takes, and nothing is dropped."""

from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.api.queues import QueueMessages
from weir.model.errors import FilterError
from weir.model.messages import Message
from weir.model.subscriptions import MessageFilter
from weir.wire.formats.messages import encode_message

KINDS: list[dict[str, Any]] = [{}, {"durable": False}, {"arguments": {"x-max-priority": 3}}]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=["durable", "memory", "levels"])
RED, BLUE = MessageFilter("color = 'red'"), MessageFilter(tags="blue")


async def publish(queue: Any, *colors: str) -> None:
    encoded = [
        encode_message(Message(None, color.encode(), [("color", color.encode()), ("TAGS", color.encode())]))
        for color in colors
    ]
    assert await queue.publish(QueueMessages(encoded)) == 0


@each_kind
def test_a_message_goes_to_a_consumer_that_takes_it_or_stays(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**kind)
        red = await stage.consumer(queue, tag="r", filter=RED)
        blue = await stage.consumer(queue, tag="b", filter=BLUE)
        await publish(queue, "red", "green", "blue", "red", "blue", "green")
        assert await stage.texts(blue, 2) == ["blue", "blue"]
        assert await stage.texts(red, 2) == ["red", "red"]
        assert await stage.nothing(red)
        assert await stage.counts(queue) == (2, 4, 2)
        every = await stage.consumer(queue, tag="e")
        assert await stage.texts(every, 2) == ["green", "green"]

    run(scenario)


@each_kind
def test_what_waits_for_one_consumers_credit_holds_up_nobody_else(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**kind)
        red = await stage.consumer(queue, tag="r", filter=RED)
        blue = await stage.consumer(queue, tag="b", filter=BLUE)
        await publish(queue, *["red"] * 50, "blue")
        assert await stage.texts(blue, 1) == ["blue"]
        assert [offset for offset, _, _ in await stage.receive(red, 20)] == [*range(20)]
        assert [offset for offset, _, _ in await stage.receive(red, 30)] == [*range(20, 50)]

    run(scenario)


@each_kind
def test_what_waited_for_a_consumer_that_leaves_is_everybodys_again(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**kind)
        red = await stage.consumer(queue, tag="r", filter=RED)
        blue = await stage.consumer(queue, tag="b", filter=BLUE)
        await publish(queue, "red", "red", "blue", "green")
        assert await stage.texts(blue, 1) == ["blue"]
        await red.close()
        other = await stage.consumer(queue, tag="o", filter=MessageFilter("color <> 'blue'"))
        assert await stage.texts(other, 3) == ["red", "red", "green"]

    run(scenario)


@each_kind
def test_who_takes_one_by_one_takes_also_what_no_filter_took(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**kind)
        blue = await stage.consumer(queue, tag="b", filter=BLUE)
        await publish(queue, "red", "blue", "green")
        assert await stage.texts(blue, 1) == ["blue"]
        getter = await queue.getter("ann")
        found = [stage.split([await getter.take()])[0][1] for _ in range(2)]
        assert found == ["red", "green"]
        assert await getter.take() is None

    run(scenario)


@each_kind
def test_purging_a_queue_takes_what_no_filter_took(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**kind)
        blue = await stage.consumer(queue, tag="b", filter=BLUE)
        await publish(queue, "red", "blue", "green")
        assert await stage.texts(blue, 1) == ["blue"]
        assert await queue.purge() == 2
        assert await stage.counts(queue) == (0, 1, 1)

    run(scenario)


def test_a_wrong_filter_of_a_consumer_is_refused(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare()
        with pytest.raises(FilterError, match="position 11"):
            await stage.consumer(queue, filter=MessageFilter("color LIKE"))
        assert (await stage.counts(queue))[2] == 0

    run(scenario)


def test_a_stream_gives_each_consumer_what_its_filter_takes(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(arguments={"x-queue-type": "stream"})
        await publish(queue, "red", "green", "blue", "red")
        red = await stage.consumer(queue, tag="r", filter=RED, stream_offset="first")
        assert [offset for offset, _, _ in await stage.receive(red, 2)] == [0, 3]

    run(scenario)


@each_kind
def test_consumers_with_equal_filters_share_what_these_take_and_count_as_one(
    run: Callable, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than one decision looks at; messages come one by one."""
    from weir.broker.filters.message_filter import Masks

    masks = 0
    mask = Masks.mask

    def counted(self: Masks, *asked: Any) -> Any:
        nonlocal masks
        masks += 1
        return mask(self, *asked)

    monkeypatch.setattr(Masks, "mask", counted)

    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**kind)
        blue = [await stage.consumer(queue, tag=f"b{at}", filter=BLUE) for at in range(80)]
        red = [await stage.consumer(queue, tag=f"r{at}", filter=RED) for at in range(80)]
        every = await stage.consumer(queue, tag="e")
        for _ in range(81):
            await publish(queue, "red")
        await publish(queue, *["green"] * 3)
        for consumer in red:
            assert await stage.texts(consumer, 1) == ["red"]
        assert await stage.texts(every, 4) == ["red", "green", "green", "green"]
        for consumer in blue:
            assert await stage.nothing(consumer)
        assert masks < 2 * 2 * 85

    run(scenario)
