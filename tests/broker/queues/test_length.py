"""Queues that are full drop what is oldest, or refuse what comes; and policies that say so."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.api.queues import ConsumeRequest
from weir.broker.queues.queue_policies import POLICIES_PROPERTY
from weir.broker.security.authentication import SecuritySettings
from weir.model.errors import NotAuthorisedError, QueueArgumentError
from weir.model.exchanges import Binding, Destination, Exchange, ExchangeType
from weir.model.queues import QueuePolicy
from weir.model.topics import DEFAULT_NAMESPACE

ANN = "ann"
KINDS: list[dict[str, Any]] = [{}, {"durable": False}]
both = pytest.mark.parametrize("kind", KINDS, ids=["durable", "memory"])
TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


async def left(stage: Any, queue: Any) -> list[str]:
    """What the queue has, once it has done what it does by itself."""
    await stage.runtime.clock.sleep(0.1)
    count = (await stage.counts(queue))[0]
    getter = await queue.getter(ANN)
    found = [stage.split([await getter.take()])[0][1] for _ in range(count)]
    assert await getter.take() is None
    await getter.close()
    return found


@both
def test_the_oldest_goes_when_there_is_one_too_many(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        dead = await stage.declare("dead", **kind)
        queue = await stage.declare("q", arguments={**TO_DEAD, "x-max-length": 3}, **kind)
        for text in "abcde":
            await stage.publish(queue, text)
        assert await left(stage, queue) == ["c", "d", "e"]
        assert await left(stage, dead) == ["a", "b"]
        await stage.publish(queue, *"1234567")
        assert await left(stage, queue) == ["5", "6", "7"]
        assert queue.keeper.too_many == 9 - 3 + 3  # what was taken back counts as ready again

    run(scenario)


@both
def test_what_consumers_have_does_not_count(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare("q", arguments={"x-max-length": 2}, **kind)
        consumer = await stage.consumer(queue)
        waiting = asyncio.create_task(stage.texts(consumer, 3))
        await stage.runtime.clock.sleep(0.1)
        await stage.publish(queue, *"abcde")
        assert await waiting == ["a", "b", "c"]
        await stage.runtime.clock.sleep(0.1)
        assert await stage.counts(queue) == (2, 3, 1)
        await consumer.close()  # what comes back may be too much
        assert await left(stage, queue) == ["d", "e"]

    run(scenario)


@both
def test_bytes_of_bodies_count_too(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare("q", arguments={"x-max-length-bytes": 10}, **kind)
        await stage.publish(queue, "aaaa", "bbbb")
        await stage.publish(queue, "cccc")
        assert await left(stage, queue) == ["bbbb", "cccc"]
        await stage.publish(queue, "dd")
        assert await left(stage, queue) == ["bbbb", "cccc", "dd"]
        await stage.publish(queue, "e" * 11)
        assert await left(stage, queue) == []

    run(scenario)


@both
@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_what_is_one_too_many_is_refused(run: Callable, kind: dict[str, Any], overflow: str) -> None:
    async def scenario(stage: Any) -> None:
        dead = await stage.declare("dead", **kind)
        arguments = {**TO_DEAD, "x-max-length": 3, "x-overflow": overflow}
        queue = await stage.declare("q", arguments=arguments, **kind)
        assert await queue.publish(stage.messages(*"ab")) == 0
        assert await queue.publish(stage.messages(*"cde")) == 0b110
        assert await queue.publish(stage.messages(*"fg")) == 0b11
        assert await left(stage, queue) == ["a", "b", "c"]
        consumer = await stage.consumer(queue)
        ((offset, _, _),) = await stage.receive(consumer, 1)
        consumer.ack([(offset, offset + 1)])
        assert await queue.publish(stage.messages(*"hi")) == 0b10
        await stage.runtime.clock.sleep(0.1)
        assert sorted(await left(stage, dead)) == (list("defgi") if overflow.endswith("dlx") else [])

    run(scenario)


def test_many_at_once_do_not_slip_through(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare("q", arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
        answers = [queue.publish(stage.messages(str(number))) for number in range(10)]
        assert await asyncio.gather(*answers) == [0] * 5 + [1] * 5
        limited = await stage.declare("b", arguments={"x-max-length-bytes": 5, "x-overflow": "reject-publish"})
        answers = [limited.publish(stage.messages(str(number))) for number in range(10)]
        assert await asyncio.gather(*answers) == [0] * 5 + [1] * 5
        consumer = await stage.consumer(limited)
        await stage.receive(consumer, 2)
        answers = [limited.publish(stage.messages(str(number))) for number in range(10)]
        assert await asyncio.gather(*answers) == [0] * 2 + [1] * 8

    run(scenario)


@both
def test_what_consumers_wait_for_is_not_refused(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        queue = await stage.declare("q", arguments=arguments, **kind)
        consumer = await stage.consumer(queue)
        waiting = asyncio.create_task(stage.texts(consumer, 3))
        await stage.runtime.clock.sleep(0.1)
        assert await queue.publish(stage.messages(*"abcde")) == 0b10000
        assert await waiting == ["a", "b", "c"]

    run(scenario)


# --- policies ---------------------------------------------------------------------------------------------------


@both
def test_a_policy_holds_for_queues_that_are_there_and_that_come(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare("logs.a", **kind)
        await stage.publish(queue, *"abcde")
        policy = QueuePolicy("short", r"^logs\.", {"max-length": 2})
        await stage.queues.set_policy(ANN, policy)
        assert queue.policy == policy
        assert queue.rules.max_length == 2
        assert await left(stage, queue) == ["d", "e"]
        later = await stage.declare("logs.b", **kind)
        other = await stage.declare("other", **kind)
        for one in (later, other):
            await stage.publish(one, *"abcde")
        assert await left(stage, later) == ["d", "e"]
        assert len(await left(stage, other)) == 5
        await stage.queues.clear_policy(ANN, "short")
        assert queue.policy is None
        await stage.publish(queue, *"fgh")
        assert await left(stage, queue) == ["d", "e", "f", "g", "h"]

    run(scenario)


def test_policies_are_kept_with_the_namespace_and_followed_by_every_broker(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare("q")
        for name, priority in (("low", 1), ("high", 2)):
            await stage.queues.set_policy(ANN, QueuePolicy(name, "q", {"max-length": priority}, priority))
        await stage.queues.set_policy(ANN, QueuePolicy("low", "q", {"max-length": 0}, operator=True))
        assert [one.name for one in stage.queues.policies()] == ["high", "low", "low"]
        assert queue.rules.max_length == 0
        registry = stage.broker.registry
        text = registry.namespaces.get(DEFAULT_NAMESPACE).properties[POLICIES_PROPERTY]
        # As another broker would do it: this one notices by itself.
        await registry.change_properties(
            DEFAULT_NAMESPACE,
            lambda now: {**now, POLICIES_PROPERTY: text.replace('"max-length":0', '"max-length":7')},
        )
        while queue.rules.max_length != 2:
            await stage.runtime.clock.sleep(1)
        await stage.queues.clear_policy(ANN, "high")
        await stage.queues.clear_policy(ANN, "low", operator=True)
        assert queue.rules.max_length == 1
        await stage.queues.clear_policy(ANN, "low")
        assert POLICIES_PROPERTY not in registry.namespaces.get(DEFAULT_NAMESPACE).properties

    run(scenario)


def test_a_policy_that_cannot_be_changes_nothing(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        with pytest.raises(QueueArgumentError):
            await stage.queues.set_policy(ANN, QueuePolicy("p", "(", {"max-length": 2}))
        assert stage.queues.policies() == []

    run(scenario)


def test_only_who_administers_the_tenant_sets_policies(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        with pytest.raises(NotAuthorisedError):
            await stage.queues.set_policy(ANN, QueuePolicy("p", "", {"max-length": 2}))
        await stage.queues.set_policy("root", QueuePolicy("p", "", {"max-length": 2}))

    run(scenario, security=SecuritySettings(authentication=True, authorisation=True, superusers=("root",)))


def test_expires_by_policy_counts_from_the_last_use(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare("q")
        consumer = await queue.consume(ConsumeRequest(ANN))
        await stage.queues.set_policy(ANN, QueuePolicy("p", "", {"expires": 1000}))
        await stage.runtime.clock.sleep(5)
        assert stage.queues.find("q") is queue
        await consumer.close()
        await stage.runtime.clock.sleep(2)
        assert stage.queues.find("q") is None

    run(scenario)


def test_a_policy_gives_an_exchange_its_alternate(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        exchanges = await stage.broker.exchanges.open(DEFAULT_NAMESPACE)
        for name in ("first", "other", "third"):
            await exchanges.declare(ANN, Exchange(name, ExchangeType.FANOUT))
        await stage.declare("astray")
        await exchanges.bind(ANN, Binding("other", Destination("astray")), durable=True)
        assert exchanges.route("first", ("k",), {}).unroutable
        await stage.queues.set_policy(ANN, QueuePolicy("p", "^first", {"alternate-exchange": "other"}))
        assert exchanges.route("first", ("k",), {}).queues == ("astray",)
        assert exchanges.route("third", ("k",), {}).unroutable
        await exchanges.declare(ANN, Exchange("first too", ExchangeType.FANOUT))
        assert exchanges.route("first too", ("k",), {}).alternate
        await exchanges.unbind(ANN, Binding("other", Destination("astray")))
        assert exchanges.route("first", ("k",), {}).unroutable
        await exchanges.bind(ANN, Binding("other", Destination("astray")), durable=True)
        await stage.queues.clear_policy(ANN, "p")
        assert exchanges.route("first", ("k",), {}).unroutable
        await exchanges.delete(ANN, "first")

    run(scenario)
