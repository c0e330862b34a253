"""Messages that live too long, and queues that nobody uses."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.api.queues import ConsumeRequest, QueueMessages
from weir.model.errors import QueueNotFoundError
from weir.model.messages import Message
from weir.model.queues import QueuePolicy
from weir.wire.formats.messages import encode_message

ANN = "ann"
KINDS: list[dict[str, Any]] = [{}, {"durable": False}]
both = pytest.mark.parametrize("kind", KINDS, ids=["durable", "memory"])
TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def timed(*texts: str, has_ms: int | None = None) -> QueueMessages:
    """Messages that say how long they have, as the AMQP gateway hands them over."""
    headers = [] if has_ms is None else [("amqp-expiration", b"%d" % has_ms)]
    told = {} if has_ms is None else dict.fromkeys(range(len(texts)), has_ms)
    return QueueMessages(
        [encode_message(Message(None, text.encode(), headers)) for text in texts], expirations_ms=told
    )


async def ready(stage: Any, queue: Any) -> int:
    return int((await stage.counts(queue))[0])


@both
def test_messages_expire_when_their_time_in_the_queue_is_over(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare("q", arguments={"x-message-ttl": 1000}, **kind)
        await queue.publish(timed("a", "b"))
        await stage.runtime.clock.sleep(0.6)
        await queue.publish(timed("c"))
        assert await ready(stage, queue) == 3
        await stage.runtime.clock.sleep(0.6)
        assert await ready(stage, queue) == 1
        await stage.runtime.clock.sleep(0.6)
        assert await ready(stage, queue) == 0
        assert queue.keeper.expired == 3

    run(scenario)


@both
def test_the_lower_of_the_queues_word_and_the_messages_holds(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        dead = await stage.declare("dead", **kind)
        queue = await stage.declare("q", arguments={**TO_DEAD, "x-message-ttl": 2000}, **kind)
        await queue.publish(timed("short", has_ms=500))
        await queue.publish(timed("long", has_ms=50_000))
        await stage.runtime.clock.sleep(1)
        assert await ready(stage, queue) == 1
        await stage.runtime.clock.sleep(1.5)
        assert await ready(stage, queue) == 0
        consumer = await stage.consumer(dead)
        assert await stage.texts(consumer, 2) == ["short", "long"]

    run(scenario)


@both
def test_what_expires_behind_one_that_does_not_is_looked_at_when_it_is_next(
    run: Callable, kind: dict[str, Any]
) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare("q", **kind)
        await queue.publish(timed("stays"))
        await queue.publish(timed("goes", has_ms=100))
        await queue.publish(timed("also stays"))
        await stage.runtime.clock.sleep(5)
        assert await ready(stage, queue) == 3
        consumer = await stage.consumer(queue)
        assert await stage.texts(consumer, 1) == ["stays"]
        await stage.runtime.clock.sleep(1)
        assert await ready(stage, queue) == 1  # it is at the head now
        assert await stage.texts(consumer, 1) == ["also stays"]

    run(scenario)


@both
def test_nothing_is_delivered_whose_time_is_over(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare("q", **kind)
        await queue.publish(timed("stays"))
        await queue.publish(timed(*(f"goes {number}" for number in range(5)), has_ms=100))
        await queue.publish(timed("last"))
        await stage.runtime.clock.sleep(1)
        consumer = await stage.consumer(queue)
        assert await stage.texts(consumer, 2) == ["stays", "last"]
        assert await stage.nothing(consumer)

    run(scenario)


@both
def test_zero_means_now_or_never(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare("q", arguments={"x-message-ttl": 0}, **kind)
        await queue.publish(timed("never"))
        await stage.runtime.clock.sleep(0.1)
        assert await ready(stage, queue) == 0
        consumer = await stage.consumer(queue)
        assert await stage.nothing(consumer)
        waiting = asyncio.create_task(stage.texts(consumer, 1))
        await stage.runtime.clock.sleep(0.1)
        await queue.publish(timed("now"))
        assert await waiting == ["now"]
        consumer.requeue([(1, 2)])
        assert await stage.nothing(consumer)

    run(scenario)


@both
def test_a_message_that_comes_back_has_no_more_time_than_before(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare("q", arguments={"x-message-ttl": 1000}, **kind)
        await queue.publish(timed("a"))
        consumer = await stage.consumer(queue)
        assert await stage.texts(consumer, 1) == ["a"]
        await stage.runtime.clock.sleep(5)
        assert await stage.counts(queue) == (0, 1, 1)  # with a consumer nothing expires
        await consumer.close()
        await stage.runtime.clock.sleep(0.1)
        assert await stage.counts(queue) == (0, 0, 0)

    run(scenario)


def test_what_was_there_before_a_restart_expires_too(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        dead = await stage.declare("dead")
        queue = await stage.declare("q", arguments=TO_DEAD)
        await queue.publish(timed("a", has_ms=1000))
        await queue.publish(timed("b"))
        topic = await stage.topic("q")
        await stage.broker.broker.unload(topic.name)
        queue = await stage.queues.get(ANN, "q")
        await stage.runtime.clock.sleep(2)
        assert await ready(stage, queue) == 1
        consumer = await stage.consumer(dead)
        assert await stage.texts(consumer, 1) == ["a"]

    run(scenario)


def test_thousands_that_expire_together_go_together(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare("q", arguments={"x-message-ttl": 1000})
        for _ in range(30):
            await queue.publish(timed(*"0123456789" * 10))
        await stage.runtime.clock.sleep(2)
        assert await ready(stage, queue) == 0
        assert queue.keeper.expired == 3000

    run(scenario)


# --- queues that nobody uses ------------------------------------------------------------------------------------


async def is_there(stage: Any, name: str = "q") -> bool:
    try:
        await stage.queues.look(name)
    except QueueNotFoundError:
        return False
    return True


@both
def test_a_queue_that_nobody_uses_goes(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        await stage.declare("q", arguments={"x-expires": 1000}, **kind)
        await stage.declare("stays", **kind)
        await stage.runtime.clock.sleep(0.5)
        assert await is_there(stage)
        await stage.runtime.clock.sleep(1)
        assert not await is_there(stage)
        assert await is_there(stage, "stays")

    run(scenario)


@both
def test_a_queue_is_used_by_consumers_getters_and_declarations(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        sleep = stage.runtime.clock.sleep
        arguments = {"x-expires": 1000}
        queue = await stage.declare("q", arguments=arguments, **kind)
        await sleep(0.8)
        await stage.declare("q", arguments=arguments, **kind)
        await sleep(0.8)
        getter = await queue.getter(ANN)
        await sleep(0.8)
        assert await getter.take() is None
        await sleep(0.8)
        consumer = await queue.consume(ConsumeRequest(ANN))
        await sleep(5)
        assert await is_there(stage)
        await consumer.close()
        await sleep(0.8)
        assert await is_there(stage)
        await queue.publish(timed("does not count"))
        await sleep(0.5)
        assert not await is_there(stage)

    run(scenario)


# --- queues that nobody has opened ------------------------------------------------------------------------------


def test_after_a_restart_messages_expire_and_go_on_though_nobody_asks_for_their_queue(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        await stage.declare("dead")
        queue = await stage.declare("q", arguments={**TO_DEAD, "x-message-ttl": 60_000})
        await queue.publish(timed("retry me"))
        await stage.declare("plain")
        await stage.declare("short-lived", arguments={"x-expires": 20_000})
        for name in ("q", "dead", "plain", "short-lived"):
            await stage.broker.broker.unload((await stage.topic(name)).name)
        await stage.runtime.clock.sleep(100)
        served = {topic.name.local for topic in stage.broker.broker.served}
        assert served == {"q", "dead"}  # and what has nothing to do by itself is left alone
        consumer = await stage.consumer(await stage.queues.look("dead"))
        assert await stage.texts(consumer, 1) == ["retry me"]
        assert not await is_there(stage, "short-lived")

    run(scenario)


def test_a_policy_alone_makes_a_queue_act_by_itself(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare("q")
        await queue.publish(timed("a"))
        await stage.queues.set_policy(ANN, QueuePolicy("p", "^q$", {"message-ttl": 60_000}))
        await stage.broker.broker.unload((await stage.topic("q")).name)
        await stage.runtime.clock.sleep(100)
        assert await ready(stage, await stage.queues.look("q")) == 0

    run(scenario)
