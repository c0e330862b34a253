"""Retry and dead letters by the server, for shared subscriptions of any protocol, in simulated time."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from weir.broker.api.consumers import StartAt, SubscribeRequest, SubscriptionType
from weir.broker.api.topics import LetterFilter
from weir.model.errors import NotAllowedError, QueueArgumentError, QueueNotFoundError
from weir.model.messages import Death, Message, death_in
from weir.model.retry import DEAD_LETTER_TOPIC, MAX_DELIVERIES, SCHEDULE, FixedDelays, RetryPolicy
from weir.model.topics import TopicName
from weir.wire.formats.table import messages_of
from weir.wire.snapshots.subscriptions import decode_retries

Run = Callable[..., None]


async def subscribed(stage: Any, properties: Mapping[str, str] | None = None, **more: Any) -> Any:
    """A consumer as Pulsar's shared ones are, of `orders`, from the oldest message on."""
    topic = await stage.topic("orders")
    if "s" not in topic.subscriptions:
        topic.ensure_subscription("s", StartAt(), properties or {})
    request = SubscribeRequest("ann", "s", SubscriptionType.SHARED, **more)
    return await topic.subscribe(request)


async def publish(stage: Any, *texts: str) -> None:
    await stage.topic("orders")
    queue = await stage.queues.look("orders")
    for text in texts:
        await stage.publish(queue, text)


async def letters(stage: Any, count: int, topic: str = "orders-s-DLQ") -> list[tuple[str, Death]]:
    """So many dead letters, once they are there: what each is, and what it says of its death."""
    found: list[tuple[str, Death]] = []
    queue = None
    while queue is None:
        try:
            queue = await stage.queues.look(topic)
        except Exception:
            await stage.runtime.clock.sleep(0.1)
    consumer = await stage.consumer(queue)
    while len(found) < count:
        for delivery in await consumer.next(count):
            found += [_read(message) for message in messages_of(delivery.batch)]
    assert await stage.nothing(consumer)
    await consumer.close()
    return found


def _read(message: Message) -> tuple[str, Death]:
    death = death_in(message.headers)
    assert death is not None
    return bytes(message.value or b"").decode(), death


async def receive(stage: Any, consumer: Any, count: int) -> list[tuple[int, str, int]]:
    found: list[tuple[int, str, int]] = await stage.receive(consumer, count)
    return found


def give_back(consumer: Any, got: Sequence[tuple[int, str, int]], **more: Any) -> None:
    consumer.redeliver([(offset, offset + 1) for offset, _, _ in got], **more)


async def policy_of(stage: Any, topic: str, policy: RetryPolicy) -> None:
    """The topic's own from now on."""
    name = TopicName.parse(topic)
    await stage.broker.registry.change_policies(name, lambda now: replace(now, retry=policy))
    loaded = await stage.topic(topic)
    while loaded.policies.retry != policy:
        await stage.runtime.clock.sleep(0.1)


RETRIED = {SCHEDULE: "1s 10s", MAX_DELIVERIES: "3"}


def test_a_message_that_fails_waits_by_the_schedule_and_others_go_on(run: Run) -> None:
    async def scenario(stage: Any) -> None:
        clock = stage.runtime.clock
        consumer = await subscribed(stage, RETRIED)
        await publish(stage, "bad", "good")
        bad, _ = await receive(stage, consumer, 2)
        give_back(consumer, [bad])
        began = clock.monotonic()
        await publish(stage, "next")
        assert [text for _, text, _ in await receive(stage, consumer, 1)] == ["next"]
        assert clock.monotonic() - began < 0.9
        assert await receive(stage, consumer, 1) == [(0, "bad", 1)]
        assert 1.0 <= clock.monotonic() - began < 1.1
        give_back(consumer, [bad])
        assert await receive(stage, consumer, 1) == [(0, "bad", 2)]
        assert 11.0 <= clock.monotonic() - began < 11.6

    run(scenario)


def test_what_was_delivered_as_often_as_allowed_is_a_dead_letter_that_tells_of_it(run: Run) -> None:
    async def scenario(stage: Any) -> None:
        consumer = await subscribed(stage, RETRIED)
        await publish(stage, "bad")
        began_ms = stage.runtime.clock.wall_ms()
        for _ in range(3):
            give_back(consumer, await receive(stage, consumer, 1))
        [(text, death)] = await letters(stage, 1)
        assert text == "bad"
        topic = TopicName.parse("orders")
        assert (death.reason, death.deliveries, death.topic) == ("delivery_limit", 3, topic)
        assert (death.offset, death.subscription) == (0, "s")
        assert began_ms - 1000 <= death.stored_ms <= began_ms + 11_000 <= death.died_ms
        assert (await stage.topic("orders")).subscriptions["s"].backlog == 0
        assert await stage.nothing(consumer)

    run(scenario)


@pytest.mark.parametrize("where", ["graveyard", "public/default/graveyard"])
def test_dead_letters_go_where_the_subscription_says(run: Run, where: str) -> None:
    async def scenario(stage: Any) -> None:
        consumer = await subscribed(stage, {MAX_DELIVERIES: "1", DEAD_LETTER_TOPIC: where})
        await publish(stage, "a", "b")
        give_back(consumer, await receive(stage, consumer, 2))
        assert [text for text, _ in await letters(stage, 2, "graveyard")] == ["a", "b"]

    run(scenario)


def test_a_policy_of_the_topic_holds_for_subscriptions_that_say_nothing(run: Run) -> None:
    async def scenario(stage: Any) -> None:
        consumer = await subscribed(stage)
        await publish(stage, "bad")
        got = await receive(stage, consumer, 1)
        give_back(consumer, got)
        assert await receive(stage, consumer, 1) == [(0, "bad", 1)]
        await policy_of(stage, "orders", RetryPolicy(FixedDelays((60_000,)), 2))
        assert "retries" in await consumer.closed()
        consumer = await subscribed(stage)
        give_back(consumer, await receive(stage, consumer, 1))
        began = stage.runtime.clock.monotonic()
        give_back(consumer, await receive(stage, consumer, 1))
        assert 60 <= stage.runtime.clock.monotonic() - began < 63
        assert [text for text, _ in await letters(stage, 1)] == ["bad"]

    run(scenario)


def test_counts_waits_and_letters_outlive_the_topic_s_unloading(run: Run) -> None:
    async def scenario(stage: Any) -> None:
        consumer = await subscribed(stage, {SCHEDULE: "100s", MAX_DELIVERIES: "2"})
        await publish(stage, "bad", "good")
        bad, good = await receive(stage, consumer, 2)
        consumer.ack([(good[0], good[0] + 1)])
        give_back(consumer, [bad])
        began = stage.runtime.clock.monotonic()
        await stage.broker.broker.unload(TopicName.parse("orders"))
        consumer = await subscribed(stage)
        assert await stage.nothing(consumer)
        assert await receive(stage, consumer, 1) == [(0, "bad", 1)]
        assert 100 <= stage.runtime.clock.monotonic() - began < 104
        give_back(consumer, [bad])
        assert [text for text, _ in await letters(stage, 1)] == ["bad"]

    run(scenario)


def test_a_consumer_that_closes_has_not_failed_and_one_that_is_lost_has(run: Run) -> None:
    async def scenario(stage: Any) -> None:
        await publish(stage, "one")
        consumer = await subscribed(stage, RETRIED)
        await receive(stage, consumer, 1)
        await consumer.close()
        consumer = await subscribed(stage)
        assert await receive(stage, consumer, 1) == [(0, "one", 0)]
        await consumer.close(failed=True)
        consumer = await subscribed(stage)
        began = stage.runtime.clock.monotonic()
        assert await receive(stage, consumer, 1) == [(0, "one", 1)]
        assert stage.runtime.clock.monotonic() - began >= 1

    run(scenario)


def test_a_consumer_s_own_wait_holds_instead_of_the_schedule(run: Run) -> None:
    async def scenario(stage: Any) -> None:
        await publish(stage, "one")
        consumer = await subscribed(stage, per_message=True)
        began = stage.runtime.clock.monotonic()
        give_back(consumer, await receive(stage, consumer, 1), delay_ms=30_000)
        assert await receive(stage, consumer, 1) == [(0, "one", 1)]
        assert 30 <= stage.runtime.clock.monotonic() - began < 31

    run(scenario)


def test_what_is_leased_fails_when_its_time_is_over_whoever_is_there(run: Run) -> None:
    async def scenario(stage: Any) -> None:
        clock = stage.runtime.clock
        await publish(stage, "kept", "done", "more")
        consumer = await subscribed(stage, {MAX_DELIVERIES: "2"}, per_message=True)
        await receive(stage, consumer, 3)
        began = clock.monotonic()
        consumer.lease([(0, 3)], 10_000)
        await consumer.close(failed=True)
        consumer = await subscribed(stage, per_message=True)
        consumer.lease([(2, 3)], 20_000)
        consumer.ack([(1, 2)])
        assert await receive(stage, consumer, 1) == [(0, "kept", 1)]
        assert 10 <= clock.monotonic() - began < 11
        consumer.lease([(0, 1)], 1_000)
        assert await receive(stage, consumer, 1) == [(2, "more", 1)]
        assert 20 <= clock.monotonic() - began < 21
        consumer.ack([(2, 3)])
        [(text, death)] = await letters(stage, 1)
        assert (text, death.deliveries) == ("kept", 2)
        assert (await stage.topic("orders")).subscriptions["s"].backlog == 0

    run(scenario)


def test_what_is_rejected_is_a_dead_letter_at_once(run: Run) -> None:
    async def scenario(stage: Any) -> None:
        await publish(stage, "a", "b", "c")
        consumer = await subscribed(stage, per_message=True)
        await receive(stage, consumer, 3)
        consumer.lease([(1, 2)], 60_000)
        consumer.reject([(0, 2)])
        found = await letters(stage, 2)
        assert [(text, death.reason, death.deliveries) for text, death in found] == [
            ("a", "rejected", 1),
            ("b", "rejected", 1),
        ]
        assert (await stage.topic("orders")).subscriptions["s"].backlog == 1

    run(scenario)


def test_a_subscription_that_is_moved_begins_anew(run: Run) -> None:
    async def scenario(stage: Any) -> None:
        await publish(stage, "one")
        consumer = await subscribed(stage, {SCHEDULE: "1h"})
        give_back(consumer, await receive(stage, consumer, 1))
        assert await stage.nothing(consumer)
        await consumer.seek(0)
        consumer = await subscribed(stage)
        assert await receive(stage, consumer, 1) == [(0, "one", 0)]

    run(scenario)


def test_a_subscription_that_is_deleted_leaves_nothing_behind(run: Run) -> None:
    async def scenario(stage: Any) -> None:
        await publish(stage, "one")
        consumer = await subscribed(stage, {SCHEDULE: "1h", MAX_DELIVERIES: "2"})
        give_back(consumer, await receive(stage, consumer, 1))
        topic = await stage.topic("orders")
        await topic.state.flush()
        assert topic.state.get("retries/s") is not None
        await topic.stored.delete_subscription("s", force=True)
        assert not [key for key in topic.state.keys("") if key.endswith("/s")]

    run(scenario)


def test_a_property_that_cannot_be_is_refused_when_the_subscription_is_made(run: Run) -> None:
    async def scenario(stage: Any) -> None:
        topic = await stage.topic("orders")
        request = SubscribeRequest(
            "ann", "s", SubscriptionType.SHARED, subscription_properties={SCHEDULE: "sometimes"}
        )
        with pytest.raises(NotAllowedError, match="sometimes"):
            await topic.subscribe(request)
        assert "s" not in topic.subscriptions

    run(scenario)


def test_a_queue_retries_by_the_topic_s_policy_and_its_letters_go_to_its_exchange(run: Run) -> None:
    async def scenario(stage: Any) -> None:
        await stage.declare("dead")
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        queue = await stage.declare("work", arguments=arguments)
        await policy_of(stage, "work", RetryPolicy(FixedDelays((5_000,)), 2))
        await stage.publish(queue, "job")
        consumer = await stage.consumer(queue)
        began = stage.runtime.clock.monotonic()
        for _ in range(2):
            [(offset, _, _)] = await stage.receive(consumer, 1)
            consumer.requeue([(offset, offset + 1)])
        assert 5 <= stage.runtime.clock.monotonic() - began < 6
        [(text, death)] = await letters(stage, 1, "dead")
        assert (text, death.reason, death.deliveries, death.topic.local) == ("job", "delivery_limit", 2, "work")

    run(scenario)


def test_many_that_wait_are_few_sets(run: Run) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.queues.look("orders") if await stage.topic("orders") else None
        await stage.publish(queue, *["x"] * 3000)
        consumer = await subscribed(stage, {SCHEDULE: "1h..30d"})
        for _ in range(30):
            give_back(consumer, await receive(stage, consumer, 100))
            await stage.runtime.clock.sleep(0.01)
        subscription = (await stage.topic("orders")).subscriptions["s"]
        assert len(subscription.retries.waiting()) == 3000
        assert len(subscription.retries.to_bytes()) < 2000

    run(scenario)


def test_a_broker_that_dies_leaves_waits_and_counts_to_the_next(run: Run) -> None:
    """By its state: what was written there a moment before holds."""

    async def scenario(stage: Any) -> None:
        await publish(stage, "a", "b")
        consumer = await subscribed(stage, {SCHEDULE: "100s", MAX_DELIVERIES: "9"})
        got = await receive(stage, consumer, 2)
        give_back(consumer, got)
        topic = await stage.topic("orders")
        await asyncio.wait_for(topic.state.flush(), 5)
        kept = decode_retries(topic.state.get("retries/s"))
        assert [list(having) for having in kept.digits] == [[0, 1]]
        assert [list(some) for some in kept.waits.values()] == [[0, 1]]

    run(scenario)


async def dead(stage: Any, *texts: str) -> Any:
    """Messages of `orders` that failed, and the box that they are in."""
    await publish(stage, *texts)
    consumer = await subscribed(stage, {MAX_DELIVERIES: "1"})
    give_back(consumer, await receive(stage, consumer, len(texts)))
    await consumer.close()
    while True:
        box = (await stage.topic("orders-s-DLQ")).stored.dead_letters
        if box.waiting == len(texts):
            return box
        await stage.runtime.clock.sleep(0.1)


def test_dead_letters_are_listed_and_put_back_where_they_came_from(run: Run) -> None:
    async def scenario(stage: Any) -> None:
        box = await dead(stage, "a", "b", "c")
        page = await box.page(LetterFilter(), start=0, most=2)
        assert [bytes(letter.message.value) for letter in page.letters] == [b"a", b"b"]
        rest = await box.page(LetterFilter(), start=page.next, most=2)
        assert ([bytes(letter.message.value) for letter in rest.letters], rest.next) == ([b"c"], None)
        done = await box.redrive(LetterFilter(sql="weir_dead_offset <> '1'"), start=0, most=100)
        assert (done.moved, done.kept, done.next, box.waiting) == (2, 0, None, 1)
        consumer = await subscribed(stage)
        assert [text for _, text, _ in await receive(stage, consumer, 2)] == ["a", "c"]
        assert "queue" not in (await stage.topic("orders")).subscriptions
        back = [messages_of(batch)[0] for batch in await (await stage.topic("orders")).read(3, 1000)]
        assert death_in(back[0].headers) is None

    run(scenario)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (LetterFilter(topic=TopicName.parse("orders")), 2),
        (LetterFilter(topic=TopicName.parse("others")), 0),
        (LetterFilter(subscription="s", reason="delivery_limit"), 2),
        (LetterFilter(reason="rejected"), 0),
        (LetterFilter(properties={"weir-dead-offset": "1"}), 1),
        (LetterFilter(key=b"k"), 0),
        (LetterFilter(since_ms=1), 2),
        (LetterFilter(until_ms=1), 0),
        (LetterFilter(sql="weir_dead_deliveries = 1 AND weir_dead_offset = 0"), 1),
    ],
)
def test_dead_letters_are_found_by_what_they_say(run: Run, wanted: LetterFilter, found: int) -> None:
    async def scenario(stage: Any) -> None:
        box = await dead(stage, "a", "b")
        assert len((await box.page(wanted, start=0, most=10)).letters) == found

    run(scenario)


class NotKnownYet:
    """Routes of letters whose topic is there, and its broker is told of it late. `asked`, `handed`: how often it
    is not found when it is looked for, and when it is given letters."""

    def __init__(self, source: Any, *, asked: int = 0, handed: int = 0) -> None:
        self._source = source
        self.asked, self.handed = asked, handed

    async def open(self, namespace: Any) -> Any:
        self._routes = await self._source.open(namespace)
        return self

    async def topic(self, name: TopicName, *, create: bool) -> Any:
        if self.asked:
            self.asked -= 1
            raise QueueNotFoundError(f"there is no {name}")
        self._queue = await self._routes.topic(name, create=create)
        return self

    async def wait_capacity(self) -> None:
        await self._queue.wait_capacity()

    async def publish(self, messages: Any) -> int:
        if self.handed:
            self.handed -= 1
            raise QueueNotFoundError("there is no such topic")
        done: int = await self._queue.publish(messages)
        return done


@pytest.mark.parametrize("late", [{"asked": 2}, {"handed": 2}], ids=str)
def test_letters_wait_for_a_topic_that_its_broker_does_not_know_yet(run: Run, late: dict[str, int]) -> None:
    async def scenario(stage: Any) -> None:
        consumer = await subscribed(stage, {MAX_DELIVERIES: "1"})
        await publish(stage, "a", "b")
        gate = stage.broker.context.letters
        routes = NotKnownYet(gate._source, **late)
        gate.lead_to(routes)
        give_back(consumer, await receive(stage, consumer, 2))
        async with asyncio.timeout(120):
            assert [text for text, _ in await letters(stage, 2)] == ["a", "b"]
        assert not routes.asked
        assert not routes.handed
        assert (await stage.topic("orders")).subscriptions["s"].backlog == 0
        assert await stage.nothing(consumer)

    run(scenario)


def test_a_letter_whose_topic_is_gone_stays(run: Run) -> None:
    async def scenario(stage: Any) -> None:
        box = await dead(stage, "a")
        await stage.broker.broker.delete(TopicName.parse("orders"), force=True)
        done = await box.redrive(LetterFilter(), start=0, most=10)
        assert (done.moved, done.kept, box.waiting) == (0, 1, 1)
        assert [text for text, _ in await letters(stage, 1)] == ["a"]

    run(scenario)


def test_what_waited_while_the_topic_was_moved_comes_once(run: Run) -> None:
    async def scenario(stage: Any) -> None:
        consumer = await subscribed(stage, {SCHEDULE: "10s"})
        await publish(stage, "bad")
        give_back(consumer, await receive(stage, consumer, 1))
        await stage.broker.broker.unload(TopicName.parse("orders"))
        await stage.topic("orders")
        consumer = await subscribed(stage)
        await stage.runtime.clock.sleep(20)
        assert await receive(stage, consumer, 1) == [(0, "bad", 1)]
        assert await stage.nothing(consumer)

    run(scenario)


def test_a_quorum_queue_with_a_limit_knows_after_its_unloading_how_often_a_message_came(run: Run) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare("q", arguments={"x-queue-type": "quorum", "x-delivery-limit": 1})
        await stage.publish(queue, "job")
        consumer = await stage.consumer(queue)
        assert await stage.receive(consumer, 1) == [(0, "job", 0)]
        consumer.requeue([(0, 1)])
        await stage.broker.broker.unload(TopicName.parse("q"))
        queue = await stage.queues.look("q")
        consumer = await stage.consumer(queue)
        assert await stage.receive(consumer, 1) == [(0, "job", 1)]
        consumer.requeue([(0, 1)])
        assert await stage.nothing(consumer)
        assert await stage.counts(queue) == (0, 0, 1)

    run(scenario)


@pytest.mark.parametrize("durable", [True, False])
def test_a_queue_waits_by_the_schedule_that_it_was_declared_with(run: Run, durable: bool) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare("q", arguments={"x-retry-schedule": "10s 1h"}, durable=durable)
        consumer = await stage.consumer(queue)
        await stage.publish(queue, "one")
        for wait_s in (10, 3600):
            assert await stage.texts(consumer, 1) == ["one"]
            consumer.requeue([(0, 1)])
            await stage.runtime.clock.sleep(wait_s - 6)
            assert await stage.nothing(consumer)  # for five seconds
        for wrong in ({"x-retry-schedule": "soon"}, {"x-queue-type": "stream", "x-retry-schedule": "1s"}):
            with pytest.raises(QueueArgumentError, match="x-retry-schedule"):
                await stage.declare("wrong", arguments=wrong)

    run(scenario)
