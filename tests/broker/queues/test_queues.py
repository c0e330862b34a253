"""Queues of both kinds, durable and in memory: declared, filled, consumed, emptied and deleted."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.api.consumers import Delivery, StartAt, SubscribeRequest, SubscriptionType
from weir.broker.api.producers import AccessMode, Outgoing, ProducerRequest
from weir.broker.api.queues import ConsumeRequest, QueueCounts
from weir.broker.security.authentication import SecuritySettings
from weir.broker.settings import BrokerSettings
from weir.model.batch import BatchFormat
from weir.model.errors import (
    ConsumerClosedError,
    InequivalentQueueError,
    NotAuthorisedError,
    ProducerBusyError,
    ProducerClosedError,
    QueueArgumentError,
    QueueInUseError,
    QueueLockedError,
    QueueNotFoundError,
    QueueRefusedError,
    StorageFullError,
)
from weir.model.exchanges import Binding, Destination
from weir.model.messages import Message
from weir.model.policies import Policies
from weir.model.queues import QUEUE_PROPERTY, QueueDeclaration
from weir.model.registry import Action
from weir.model.topics import DEFAULT_NAMESPACE, TopicName
from weir.wire.formats.messages import encode_messages

ANN = "ann"
#: A durable queue, and one in memory.
KINDS: list[dict[str, Any]] = [{}, {"durable": False}]
both = pytest.mark.parametrize("kind", KINDS, ids=["durable", "memory"])


@both
def test_messages_are_delivered_one_by_one_exactly_as_credit_says(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**kind)
        await stage.publish(queue, *(f"m{i}" for i in range(100)))
        consumer = await stage.consumer(queue)
        assert await stage.texts(consumer, 1) == ["m0"]
        assert await stage.counts(queue) == (99, 1, 1)
        assert await stage.texts(consumer, 7) == [f"m{i}" for i in range(1, 8)]
        consumer.ack([(0, 8)])
        assert await stage.counts(queue) == (92, 0, 1)
        (whole,) = await consumer.next(1000)
        assert stage.split([whole])[0][1] == "m8"
        assert await stage.counts(queue) == (0, 92, 1)
        consumer.ack([(8, 100)])
        assert await stage.counts(queue) == (0, 0, 1)
        await consumer.close()
        assert await stage.counts(queue) == (0, 0, 0)

    run(scenario)


@both
def test_a_batch_that_fits_the_credit_comes_whole(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**kind)
        consumer = await stage.consumer(queue)
        await stage.publish(queue, *"abc")
        (delivery,) = await consumer.next(10)
        assert delivery.wanted is None
        assert delivery.batch.count == 3

    run(scenario)


@both
def test_consumers_take_turns_message_by_message(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**kind)
        one, two = await stage.consumer(queue), await stage.consumer(queue)
        waiting = [asyncio.ensure_future(consumer.next(100)) for consumer in (one, two)]
        await asyncio.sleep(0)
        await stage.publish(queue, *"abcdef")
        found = [[text for _, text, _ in stage.split(await task)] for task in waiting]
        assert found == [["a", "c", "e"], ["b", "d", "f"]]

    run(scenario)


@both
def test_the_highest_consumer_priority_that_has_credit_is_served_first(
    run: Callable, kind: dict[str, Any]
) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**kind)
        low, high = await stage.consumer(queue), await stage.consumer(queue, priority=10)
        waiting = [asyncio.ensure_future(low.next(100)), asyncio.ensure_future(high.next(2))]
        await asyncio.sleep(0)
        await stage.publish(queue, *"abcd")
        found = [[text for _, text, _ in stage.split(await task)] for task in waiting]
        assert found == [["c", "d"], ["a", "b"]]

    run(scenario)


@both
def test_requeued_messages_go_back_to_their_old_places_and_are_counted_each(
    run: Callable, kind: dict[str, Any]
) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**kind)
        await stage.publish(queue, *"abcdef")
        consumer = await stage.consumer(queue)
        await stage.receive(consumer, 4)
        consumer.requeue([(3, 4), (1, 2)])
        assert await stage.counts(queue) == (4, 2, 1)
        assert await stage.receive(consumer, 4) == [(1, "b", 1), (3, "d", 1), (4, "e", 0), (5, "f", 0)]
        consumer.requeue([(1, 2)])
        assert await stage.receive(consumer, 1) == [(1, "b", 2)]
        await consumer.close()
        other = await stage.consumer(queue)
        assert await stage.receive(other, 6) == [
            (0, "a", 1),
            (1, "b", 3),
            (2, "c", 1),
            (3, "d", 2),
            (4, "e", 1),
            (5, "f", 1),
        ]

    run(scenario)


@both
def test_what_a_consumer_never_saw_is_not_redelivered(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**kind)
        consumer = await stage.consumer(queue)
        waiting = asyncio.ensure_future(consumer.next(10))
        await asyncio.sleep(0)
        done = queue.publish(stage.messages("a"))
        while not consumer.unacked:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await done
        assert waiting.cancelled()
        assert await stage.counts(queue) == (1, 0, 1)
        assert await stage.receive(consumer, 1) == [(0, "a", 0)]

    run(scenario)


@both
def test_a_getter_takes_one_message_at_a_time_and_is_no_consumer(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**kind)
        getter = await queue.getter(ANN)
        assert await getter.take() is None
        await stage.publish(queue, *"abc")
        assert stage.split([await getter.take()]) == [(0, "a", 0)]
        assert await stage.counts(queue) == (2, 1, 0)
        getter.requeue([(0, 1)])
        assert stage.split([await getter.take()]) == [(0, "a", 1)]
        assert stage.split([await getter.take()]) == [(1, "b", 0)]
        getter.ack([(0, 1)])
        await getter.close()
        assert await stage.counts(queue) == (2, 0, 0)
        consumer = await stage.consumer(queue)
        assert await stage.receive(consumer, 2) == [(1, "b", 1), (2, "c", 0)]

    run(scenario)


@both
def test_a_retired_consumer_keeps_what_it_has_and_gets_nothing_more(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**kind)
        await stage.publish(queue, *"abc")
        consumer = await stage.consumer(queue)
        await stage.receive(consumer, 2)
        consumer.retire()
        assert await stage.counts(queue) == (1, 2, 0)
        with pytest.raises(ConsumerClosedError):
            await consumer.next(1)
        consumer.ack([(0, 1)])
        assert await stage.counts(queue) == (1, 1, 0)
        consumer.requeue([(1, 2)])
        other = await stage.consumer(queue)
        assert await stage.receive(other, 2) == [(1, "b", 1), (2, "c", 0)]
        await consumer.close()

    run(scenario)


@both
def test_rejected_messages_are_gone(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**kind)
        await stage.publish(queue, *"ab")
        consumer = await stage.consumer(queue)
        await stage.receive(consumer, 2)
        consumer.reject([(0, 1)])
        await consumer.close()
        assert await stage.counts(queue) == (1, 0, 0)

    run(scenario)


@both
def test_a_purge_drops_what_is_ready_and_leaves_what_consumers_have(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**kind)
        await stage.publish(queue, *"abcdef")
        consumer = await stage.consumer(queue)
        await stage.receive(consumer, 3)
        consumer.requeue([(1, 2)])
        assert await queue.purge() == 4
        assert await stage.counts(queue) == (0, 2, 1)
        await stage.publish(queue, "g")
        consumer.requeue([(2, 3)])
        assert await stage.receive(consumer, 2) == [(2, "c", 1), (6, "g", 0)]

    run(scenario)


@both
def test_an_exclusive_consumer_is_the_only_one(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**kind)
        alone = await stage.consumer(queue, exclusive=True)
        with pytest.raises(QueueLockedError, match="in exclusive use"):
            await stage.consumer(queue)
        await stage.publish(queue, "a")
        getter = await queue.getter(ANN)
        assert stage.split([await getter.take()]) == [(0, "a", 0)]
        await alone.close()
        await stage.consumer(queue)
        with pytest.raises(QueueLockedError, match="in exclusive use"):
            await stage.consumer(queue, exclusive=True)

    run(scenario)


@both
def test_of_single_active_consumers_the_first_is_served_and_the_next_takes_over(
    run: Callable, kind: dict[str, Any]
) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**kind, arguments={"x-single-active-consumer": True})
        first, second = await stage.consumer(queue), await stage.consumer(queue)
        await stage.publish(queue, *"ab")
        assert await stage.nothing(second)
        assert await stage.texts(first, 1) == ["a"]
        waiting = asyncio.ensure_future(second.next(10))
        await first.close()
        assert stage.split(await waiting) == [(0, "a", 1), (1, "b", 0)]

    run(scenario)


@both
def test_a_queue_that_goes_with_its_last_consumer_goes_then_with_its_bindings(
    run: Callable, kind: dict[str, Any]
) -> None:
    async def scenario(stage: Any) -> None:
        exchanges = await stage.broker.exchanges.open(DEFAULT_NAMESPACE)
        queue = await stage.declare(**kind, auto_delete=True)
        binding = Binding("amq.direct", Destination("q"), "key")
        await exchanges.bind(ANN, binding, durable=queue.declaration.durable)
        getter = await queue.getter(ANN)
        await getter.close()
        one, two = await stage.consumer(queue), await stage.consumer(queue)
        one.retire()
        assert queue.alive
        await two.close()
        assert await one.closed()
        while "q" in await stage.queues.names():
            await asyncio.sleep(0.01)
        assert exchanges.bindings(queue="q") == []
        assert not queue.alive
        with pytest.raises(QueueNotFoundError):
            await stage.queues.get(ANN, "q")

    run(scenario)


@both
def test_deleting_says_how_many_messages_there_were_and_closes_consumers(
    run: Callable, kind: dict[str, Any]
) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(**kind)
        await stage.publish(queue, *"abc")
        with pytest.raises(QueueInUseError, match="not empty"):
            await stage.queues.delete(ANN, "q", if_empty=True)
        consumer = await stage.consumer(queue)
        with pytest.raises(QueueInUseError, match="in use"):
            await stage.queues.delete(ANN, "q", if_unused=True)
        await stage.receive(consumer, 1)
        assert await stage.queues.delete(ANN, "q") == 2
        assert "deleted" in await consumer.closed()
        consumer.ack([(0, 1)])
        consumer.requeue([(0, 1)])
        await consumer.close()
        assert stage.queues.find("q") is None
        assert not queue.alive
        with pytest.raises(Exception, match=r"no queue|not served"):
            await queue.publish(stage.messages("x"))
        assert await stage.queues.delete(ANN, "q") == 0
        again = await stage.declare(**kind)
        assert await stage.counts(again) == (0, 0, 0)

    run(scenario)


@both
def test_a_queue_that_is_there_is_found_and_declared_like_it_is_only(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        arguments = {"x-message-ttl": 1000}
        assert stage.queues.find("q") is None
        queue = await stage.declare(**kind, arguments=arguments)
        assert stage.queues.find("q") is queue
        assert await stage.queues.get(ANN, "q") is queue
        assert await stage.declare(**kind, arguments=arguments) is queue
        said = "true" if kind else "false"
        with pytest.raises(
            InequivalentQueueError,
            match=f"inequivalent arg 'durable' for queue 'q' in vhost '/': received '{said}'",
        ):
            await stage.declare(durable=bool(kind), arguments=arguments)
        with pytest.raises(InequivalentQueueError, match="inequivalent arg 'auto_delete'"):
            await stage.declare(**kind, arguments=arguments, auto_delete=True)
        with pytest.raises(
            InequivalentQueueError,
            match="'x-message-ttl' for queue 'q' in vhost '/': received '5' but current is '1000'",
        ):
            await stage.declare(**kind, arguments={"x-message-ttl": 5})
        with pytest.raises(InequivalentQueueError, match="received none but current is the value '1000'"):
            await stage.declare(**kind)
        assert await stage.queues.names() == ["q"]

    run(scenario)


def test_names_that_are_the_brokers_are_refused_and_made_up_for_those_without(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        with pytest.raises(QueueRefusedError, match=r"contains reserved prefix 'amq\.\*'"):
            await stage.declare("amq.mine")
        first, second = await stage.declare("", durable=False), await stage.declare("", exclusive=True)
        assert first.declaration.name.startswith("amq.gen-")
        assert first.declaration.name != second.declaration.name
        assert stage.queues.find(first.declaration.name) is first

    run(scenario)


def test_an_exclusive_queue_is_its_connections_and_goes_with_it(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(exclusive=True, connection="c1")
        for other in ("c2", ""):
            with pytest.raises(
                QueueLockedError, match="cannot obtain exclusive access to locked queue 'q' in vhost '/'"
            ):
                await stage.queues.get(ANN, "q", connection=other)
            with pytest.raises(QueueLockedError):
                await stage.declare(exclusive=True, connection=other)
            with pytest.raises(QueueLockedError):
                await stage.queues.delete(ANN, "q", connection=other)
        assert await stage.declare(exclusive=True, connection="c1") is queue
        with pytest.raises(QueueLockedError):
            await stage.declare(connection="c1")
        consumer = await stage.consumer(queue)
        await stage.queues.release("c2")
        assert queue.alive
        await stage.queues.release("c1")
        assert "connection" in await consumer.closed()
        assert stage.queues.find("q") is None

    run(scenario)


def test_arguments_that_cannot_be_are_refused(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        for arguments in (
            {"x-queue-type": "other"},
            {"x-max-priority": -1},
            {"x-max-priority": 256},
            {"x-max-priority": "1"},
            {"x-single-active-consumer": 1},
        ):
            with pytest.raises(QueueArgumentError, match=next(iter(arguments))):
                await stage.declare(arguments=arguments)

    run(scenario)


def test_a_durable_queue_is_a_topic_that_others_produce_to_and_its_declaration_comes_back(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        arguments = {"x-single-active-consumer": True, "x-other": [1, b"x", None]}
        queue = await stage.declare(arguments=arguments)
        topic = await stage.topic()
        producer = await topic.produce(ProducerRequest(ANN))
        payload = encode_messages([Message(None, b"a"), Message(None, b"b")])
        await producer.publish(Outgoing(payload, 2, BatchFormat.MESSAGES))
        consumer = await stage.consumer(queue)
        assert await stage.texts(consumer, 1) == ["a"]
        consumer.ack([(0, 1)])
        (subscription,) = topic.stats().subscriptions
        assert (subscription.name, subscription.backlog, subscription.unacked) == ("queue", 1, 0)
        await stage.broker.broker.unload(topic.name)
        assert not queue.alive
        assert stage.queues.find("q") is None
        again = await stage.queues.get(ANN, "q")
        assert again.declaration == queue.declaration == QueueDeclaration("q", arguments=arguments)
        assert again.rules.single_active
        assert await stage.counts(again) == (1, 0, 0)
        assert await stage.texts(await stage.consumer(again), 1) == ["b"]

    run(scenario)


def test_a_topic_that_nobody_declared_is_a_queue_from_its_oldest_message_on(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        topic = await stage.topic("t")
        producer = await topic.produce(ProducerRequest(ANN))
        await producer.publish(Outgoing(encode_messages([Message(None, b"a")]), 1, BatchFormat.MESSAGES))
        queue = await stage.queues.get(ANN, "t")
        assert queue.declaration == QueueDeclaration("t")
        assert await stage.counts(queue) == (1, 0, 0)
        assert topic.subscriptions == {}
        assert await stage.texts(await stage.consumer(queue), 1) == ["a"]
        assert await stage.declare("t") is queue
        with pytest.raises(InequivalentQueueError):
            await stage.declare("t", durable=False)
        adopted = await stage.declare("t", arguments={"x-max-length": 5})
        assert adopted.declaration.arguments == {"x-max-length": 5}
        with pytest.raises(QueueNotFoundError, match="no queue 'u'"):
            await stage.queues.get(ANN, "u")

    run(scenario)


def test_partitions_are_queues_and_all_of_them_together_one_with_the_topics_name(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        await stage.broker.registry.topics.create(TopicName.parse("p"), partitions=2)
        assert await stage.queues.names() == ["p-partition-0", "p-partition-1"]
        queue = await stage.queues.get(ANN, "p-partition-1")
        await stage.publish(queue, "a")
        assert (await stage.topic("p-partition-1")).end_offset == 1
        whole = await stage.queues.get(ANN, "p")
        assert (await whole.counts()).ready == 1
        for text in "bcd":
            await stage.publish(whole, text)
        assert await stage.declare("p") is whole is stage.queues.find("p")
        with pytest.raises(InequivalentQueueError):
            await stage.declare("p", arguments={"x-max-length": 5})
        consumer = await whole.consume(ConsumeRequest(ANN))
        seen: list[Delivery] = []
        while len(seen) < 4:
            seen += await consumer.next(1)
        assert await whole.counts() == QueueCounts(0, 4, 1)
        consumer.ack([(one.batch.base_offset, one.batch.base_offset + 1) for one in seen[:3]])
        await consumer.close()
        assert await whole.counts() == QueueCounts(1, 0, 0)
        with pytest.raises(QueueInUseError, match="not empty"):
            await stage.queues.delete(ANN, "p", if_empty=True)
        assert await stage.queues.delete(ANN, "p") == 1
        assert await stage.queues.names() == []

    run(scenario)


def test_a_shared_consumer_of_another_protocol_is_a_consumer_of_the_queue(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare()
        topic = await stage.topic()
        request = SubscribeRequest(ANN, "queue", SubscriptionType.SHARED, start=StartAt())
        other = await topic.subscribe(request)
        await stage.publish(queue, *"abc")
        (delivery,) = await other.next(2)
        assert delivery.wanted == 0b11
        assert await stage.counts(queue) == (1, 2, 1)
        other.redeliver([(1, 2)])
        assert stage.split(await other.next(10)) == [(1, "b", 1), (2, "c", 0)]

    run(scenario)


def test_an_exclusive_producer_keeps_others_out_of_the_queue(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare()
        topic = await stage.topic()
        producer = await topic.produce(ProducerRequest(ANN, access=AccessMode.EXCLUSIVE))
        with pytest.raises(ProducerBusyError):
            await queue.publish(stage.messages("a"))
        await producer.close()
        await stage.publish(queue, "a")

    run(scenario)


def test_transient_messages_are_answered_at_once_but_never_before_those_that_came_before_them(
    run: Callable,
) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare()
        at_once = queue.publish(stage.messages("a", persistent=False))
        assert at_once.done()
        stored = queue.publish(stage.messages("b"))
        behind = queue.publish(stage.messages("c", persistent=False))
        assert not stored.done()
        assert not behind.done()
        await behind
        assert stored.done()
        assert await stage.texts(await stage.consumer(queue), 3) == ["a", "b", "c"]

    run(scenario)


def test_much_that_is_published_at_once_becomes_several_entries_in_order(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare()
        texts = [f"{i}:" + "x" * 300_000 for i in range(10)]
        await stage.publish(queue, *texts)
        consumer = await stage.consumer(queue)
        found = await stage.receive(consumer, 10)
        assert [text for _, text, _ in found] == texts

    run(scenario)


def test_memory_is_bounded_and_freed_by_acknowledgements_also_behind_one_that_stays(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare(durable=False)
        consumer = await stage.consumer(queue)
        published = 0
        for _ in range(3000):
            await stage.publish(queue, "x" * 100)
            published += 1
            (offset, _, _) = (await stage.receive(consumer, 1))[0]
            if offset:
                consumer.ack([(offset, offset + 1)])
        assert len(queue.log) < 600
        await stage.publish(queue, "y" * 200_000)
        waiting = asyncio.ensure_future(queue.wait_capacity())
        await asyncio.sleep(0)
        assert not waiting.done()
        await stage.receive(consumer, 1)
        consumer.ack([(0, published + 1)])
        await waiting
        assert len(queue.log) == 0
        assert stage.broker.context.queue_budget.used_bytes == 0

    run(scenario, broker=BrokerSettings(queue_memory_bytes=200_000))


def test_a_message_for_later_is_seen_when_its_moment_has_come(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        for kind in KINDS:
            queue = await stage.declare("q" if kind else "d", **kind)
            due = stage.runtime.clock.wall_ms() + 60_000
            await stage.publish(queue, "later", deliver_at_ms=due)
            await stage.publish(queue, "now")
            consumer = await stage.consumer(queue)
            assert await stage.texts(consumer, 1) == ["now"]
            assert await stage.texts(consumer, 1) == ["later"]
            assert stage.runtime.clock.wall_ms() >= due

    run(scenario)


def test_the_declaration_is_a_property_of_the_topic(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        await stage.declare(arguments={"x-max-priority": 3})
        record = await stage.broker.registry.topics.get(TopicName.parse("q"))
        assert "x-max-priority" in record.properties[QUEUE_PROPERTY]

    run(scenario)


def test_a_request_of_a_role_without_rights_is_refused(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        with pytest.raises(NotAuthorisedError):
            await stage.declare()
        root = QueueDeclaration("q")
        queue = await stage.queues.declare("root", root)
        transient = await stage.queues.declare("root", QueueDeclaration("m", durable=False))
        for one in (queue, transient):
            with pytest.raises(NotAuthorisedError):
                await one.consume(ConsumeRequest(ANN))
            with pytest.raises(NotAuthorisedError):
                await one.getter(ANN)
        with pytest.raises(NotAuthorisedError):
            await stage.queues.delete(ANN, "q")
        await stage.broker.registry.grants.grant(DEFAULT_NAMESPACE, ANN, (Action.CONSUME,))
        for one in (queue, transient):
            await one.consume(ConsumeRequest(ANN))

    run(scenario, security=SecuritySettings(authorisation=True, superusers=("root",)))


def test_a_topic_that_is_deleted_by_others_takes_its_bindings_along(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        exchanges = await stage.broker.exchanges.open(DEFAULT_NAMESPACE)
        queue = await stage.declare()
        await exchanges.bind(ANN, Binding("amq.direct", Destination("q"), "key"), durable=True)
        await stage.broker.broker.delete(TopicName.parse("q"), force=True)
        assert exchanges.bindings(queue="q") == []
        assert not queue.alive
        assert stage.queues.find("q") is None

    run(scenario)


def test_consumers_of_a_role_that_lost_its_grant_are_sent_away_from_queues_of_both_kinds(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        grants = stage.broker.registry.grants
        await grants.grant(DEFAULT_NAMESPACE, ANN, (Action.CONSUME,))
        consumers = []
        for declaration in (QueueDeclaration("q"), QueueDeclaration("m", durable=False)):
            queue = await stage.queues.declare("root", declaration)
            consumers.append(await queue.consume(ConsumeRequest(ANN)))
        await grants.revoke(DEFAULT_NAMESPACE, ANN)
        for consumer in consumers:
            assert "may not consume" in await consumer.closed()

    run(scenario, security=SecuritySettings(authorisation=True, superusers=("root",)))


def test_a_queue_outlives_the_policy_that_drops_unused_subscriptions(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare()
        await stage.publish(queue, "a")
        topic = await stage.topic()
        await topic.stored.create_subscription("other", StartAt())
        await stage.runtime.clock.sleep(180)
        assert list(topic.subscriptions) == ["queue"]
        assert await stage.counts(queue) == (1, 0, 0)

    run(scenario, policies=Policies(subscription_expiry_min=1))


def test_after_a_failure_publishes_wait_until_it_is_known_what_it_left_behind_and_keep_their_order(
    run: Callable,
) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare()
        await stage.publish(queue, "a")
        topic = await stage.topic()
        topic.publisher.failed = True
        topic.stream._appender.failures += 1
        deferred = [queue.publish(stage.messages(text)) for text in ("b", "c")]
        await asyncio.gather(*deferred)
        assert not topic.publisher.failed
        await stage.publish(queue, "d")
        assert await stage.texts(await stage.consumer(queue), 4) == ["a", "b", "c", "d"]

    run(scenario)


def test_what_is_published_while_nothing_can_be_stored_is_refused_and_not_kept_for_later(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare()
        topic = await stage.topic()
        topic.publisher.failed = True
        appender = topic.stream._appender
        appender.failures += 1

        async def no_ledger() -> None:
            for _ in range(20):  # the publish comes while it is being found out
                await asyncio.sleep(0)
            raise StorageFullError("the disk is full")

        appender._turnover.start(no_ledger)
        for _ in range(2):
            with pytest.raises(ProducerClosedError, match="could not be stored"):
                await queue.publish(stage.messages("refused"))
            await appender._turnover.quiet()
            appender._turnover.start(no_ledger)
        await appender._turnover.quiet()
        await stage.publish(queue, "a")
        assert await stage.texts(await stage.consumer(queue), 1) == ["a"]

    run(scenario)
