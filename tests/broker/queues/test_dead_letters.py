"""What a queue gives up goes to its dead letter exchange, tells of its death, and exists once."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from weir.broker.api.producers import Outgoing, ProducerRequest
from weir.broker.api.queues import ConsumeRequest, QueueMessages
from weir.broker.dead_letters.letters import PARCEL_KEY, DeadLetterBatch, Sent
from weir.broker.dead_letters.letters import Destination as SentTo
from weir.model.batch import BatchFormat
from weir.model.exchanges import Binding, Destination, Exchange, ExchangeType
from weir.model.messages import Message
from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.model.topics import DEFAULT_NAMESPACE, TopicName
from weir.wire.amqp.content import opened_envelope
from weir.wire.amqp.dead_letter import Reason
from weir.wire.amqp.message import message_of, outgoing_of
from weir.wire.amqp.methods import basic
from weir.wire.amqp.properties import Properties, decode_properties
from weir.wire.amqp.tables import Table, plain_fields
from weir.wire.formats.messages import encode_message, encode_messages
from weir.wire.formats.table import messages_of

ANN = "ann"
KINDS: list[dict[str, Any]] = [{}, {"durable": False}]
both = pytest.mark.parametrize("kind", KINDS, ids=["durable", "memory"])
TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def published(*texts: str, key: str = "q", headers: dict[str, Any] | None = None, **said: Any) -> QueueMessages:
    table = None if headers is None else Table.of(headers)
    messages = [
        message_of(basic.Publish("", key), Properties(headers=table, delivery_mode=2, **said), text.encode(), 0)
        for text in texts
    ]
    return QueueMessages([encode_message(message) for message in messages])


async def some(consumer: Any, count: int) -> list[Message]:
    """So many messages, which are acknowledged."""
    found: list[Message] = []
    while len(found) < count:
        for delivery in await consumer.next(count - len(found)):
            base = delivery.batch.base_offset
            for index, message in enumerate(messages_of(delivery.batch)):
                if delivery.wanted is None or delivery.wanted >> index & 1:
                    found.append(message)
                    consumer.ack([(base + index, base + index + 1)])
    return found


async def letters(queue: Any, count: int) -> list[tuple[str, str, str, dict[str, Any]]]:
    """(body, exchange, routing key, headers) of dead letters."""
    consumer = await queue.consume(ConsumeRequest(ANN))
    found = []
    for message in await some(consumer, count):
        out = outgoing_of(message, queue.name)
        table = decode_properties(out.header[12:]).headers
        found.append(
            (
                bytes(out.body).decode(),
                *opened_envelope(out.envelope),
                {} if table is None else plain_fields(table),
            )
        )
    await consumer.close()
    return found


async def drained(stage: Any, queue: Any) -> None:
    """Wait until nothing of the queue is left, in whatever hands."""
    while queue.subscription.backlog:
        await stage.runtime.clock.sleep(0.01)


@both
def test_what_is_rejected_goes_to_the_dead_letter_exchange(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        dead = await stage.declare("dead", **kind)
        queue = await stage.declare("q", arguments=TO_DEAD, **kind)
        assert await queue.publish(published(*"abc")) == 0
        consumer = await stage.consumer(queue)
        await stage.receive(consumer, 3)
        consumer.reject([(0, 1), (2, 3)])
        consumer.ack([(1, 2)])
        (a, c) = await letters(dead, 2)
        assert (a[:3], c[:3]) == (("a", "", "dead"), ("c", "", "dead"))
        (death,) = a[3]["x-death"]
        del death["time"]
        assert death == {"count": 1, "reason": "rejected", "queue": "q", "exchange": "", "routing-keys": ["q"]}
        await drained(stage, queue)
        assert await stage.counts(queue) == (0, 0, 1)

    run(scenario)


def test_letters_are_routed_by_their_own_keys_through_the_exchange(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        exchanges = await stage.broker.exchanges.open(DEFAULT_NAMESPACE)
        await exchanges.declare(ANN, Exchange("dlx", ExchangeType.TOPIC))
        for name, key in (("one", "a.*"), ("two", "#.b"), ("never", "x")):
            await stage.declare(name)
            await exchanges.bind(ANN, Binding("dlx", Destination(name), key), durable=True)
        queue = await stage.declare("q", arguments={"x-dead-letter-exchange": "dlx"})
        await queue.publish(published("both", key="a.b"))
        await queue.publish(published("copy", key="nowhere", headers={"CC": ["a.c"]}))
        await queue.publish(published("lost", key="nowhere"))
        consumer = await stage.consumer(queue)
        await stage.receive(consumer, 3)
        consumer.reject([(0, 3)])
        await drained(stage, queue)
        assert [one[:3] for one in await letters(stage.queues.find("one"), 2)] == [
            ("both", "dlx", "a.b"),
            ("copy", "dlx", "nowhere"),
        ]
        assert [one[0] for one in await letters(stage.queues.find("two"), 1)] == ["both"]
        for name in ("one", "two", "never"):
            assert (await stage.counts(stage.queues.find(name)))[0] == 0

    run(scenario)


@both
def test_without_an_exchange_or_with_one_that_is_not_there_it_is_gone(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        for name, arguments in (("plain", {}), ("astray", {"x-dead-letter-exchange": "none"})):
            queue = await stage.declare(name, arguments=arguments, **kind)
            await queue.publish(published("a"))
            consumer = await stage.consumer(queue)
            await stage.receive(consumer, 1)
            consumer.reject([(0, 1)])
            await drained(stage, queue)
            await consumer.close()
            assert await stage.counts(queue) == (0, 0, 0)

    run(scenario)


def test_a_message_of_kafka_or_pulsar_dies_like_any_other(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        dead = await stage.declare("dead")
        queue = await stage.declare("q", arguments=TO_DEAD)
        topic = await stage.topic("q")
        producer = await topic.produce(ProducerRequest(ANN))
        payload = encode_messages([Message(b"key", b"body", [("h", b"\xff")], event_ms=5)])
        await producer.publish(Outgoing(payload, 1, BatchFormat.MESSAGES))
        consumer = await stage.consumer(queue)
        await stage.receive(consumer, 1)
        consumer.reject([(0, 1)])
        reader = await dead.consume(ConsumeRequest(ANN))
        (message,) = await some(reader, 1)
        assert (message.key, message.value, message.event_ms) == (b"key", b"body", 5)
        assert dict(message.headers)["h"] == b"\xff"
        assert dict(message.headers)["x-first-death-queue"] == b"q"

    run(scenario)


@both
def test_a_circle_ends_unless_somebody_rejects(run: Callable, kind: dict[str, Any]) -> None:
    async def scenario(stage: Any) -> None:
        around = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
        queue = await stage.declare("q", arguments={**around, "x-message-ttl": 100}, **kind)
        await queue.publish(published("once"))
        await drained(stage, queue)  # it expired, and does not come back for ever
        again = await stage.declare("again", arguments={**around, "x-dead-letter-routing-key": "again"}, **kind)
        await again.publish(published("more", key="again"))
        consumer = await stage.consumer(again)
        for count in range(3):
            ((offset, text, _),) = await stage.receive(consumer, 1)
            assert (offset, text) == (count, "more")
            consumer.reject([(offset, offset + 1)])
        ((offset, _, _),) = await stage.receive(consumer, 1)
        assert offset == 3

    run(scenario)


def test_what_is_delivered_too_often_is_a_dead_letter(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        dead = await stage.declare("dead")
        arguments = {**TO_DEAD, "x-queue-type": "quorum", "x-delivery-limit": 2}
        queue = await stage.declare("q", arguments=arguments)
        await queue.publish(published("a", "b"))
        consumer = await stage.consumer(queue)
        for times in range(3):
            assert await stage.receive(consumer, 1) == [(0, "a", times)]
            consumer.requeue([(0, 1)])
        assert await stage.receive(consumer, 1) == [(1, "b", 0)]
        ((text, _, _, headers),) = await letters(dead, 1)
        assert (text, headers["x-death"][0]["reason"]) == ("a", "delivery_limit")

    run(scenario)


def test_many_letters_go_in_few_parcels_in_their_order(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        dead = await stage.declare("dead")
        queue = await stage.declare("q", arguments=TO_DEAD)
        texts = [f"m{number}" for number in range(600)]
        for first in range(0, 600, 100):
            await queue.publish(published(*texts[first : first + 100]))
        consumer = await stage.consumer(queue)
        await stage.receive(consumer, 600)
        consumer.reject([(0, 600)])
        assert [one[0] for one in await letters(dead, 600)] == texts
        await drained(stage, queue)
        assert Sent.decode((await stage.topic("q")).state.get(PARCEL_KEY)).number == 2
        assert (await stage.topic("dead")).stream.end_offset == 600

    run(scenario)


def test_a_parcel_that_was_under_way_arrives_once_and_is_not_delivered_here(run: Callable) -> None:
    """As after a crash: before anything was sent, or after all of it was stored and before it is acknowledged."""

    async def scenario(stage: Any) -> None:
        dead = await stage.declare("dead")
        queue = await stage.declare("q", arguments=TO_DEAD)
        await queue.publish(published(*"abc"))
        topic = await stage.topic("q")
        parcel = DeadLetterBatch(Reason.REJECTED, SentTo("", "dead"), 1_800_000_000_000, {"dead": [(0, 2)]})
        written = Sent(1 << 62, 7, parcel).encode()
        topic.state.put(PARCEL_KEY, written)
        for _ in range(3):  # who finds it sends it; the second and third time it is there already
            cursor = topic.subscriptions["queue"].cursor
            await stage.broker.broker.unload(topic.name)
            queue = await stage.queues.get(ANN, "q")
            topic = await stage.topic("q")
            while Sent.decode(topic.state.get(PARCEL_KEY)).parcel is not None:
                await stage.runtime.clock.sleep(0.01)
            assert topic.subscriptions["queue"].cursor.is_acked(1)
            assert await stage.counts(queue) == (1, 0, 0)
            assert await stage.counts(await stage.queues.get(ANN, "dead")) == (2, 0, 0)
            # The acknowledgement is lost with the broker, and with it the word that the parcel has arrived.
            cursor = topic.subscriptions["queue"].cursor
            cursor.reset(0)
            topic.subscriptions["queue"].save()
            topic.state.put(PARCEL_KEY, written)
        assert [one[0] for one in await letters(await stage.queues.get(ANN, "dead"), 2)] == ["a", "b"]
        assert dead is not queue

    run(scenario)


def test_letters_go_to_a_topic_with_partitions_once(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        await stage.broker.registry.topics.create(TopicName.parse("parts"), partitions=3)
        queue = await stage.declare("q", arguments={**TO_DEAD, "x-dead-letter-routing-key": "parts"})
        await queue.publish(published(*"ab"))
        topic = await stage.topic("q")
        written = Sent(
            1 << 62, 7, DeadLetterBatch(Reason.REJECTED, SentTo("", "parts"), 0, {"parts": [(0, 2)]})
        ).encode()
        for _ in range(2):
            topic.state.put(PARCEL_KEY, written)
            await stage.broker.broker.unload(topic.name)
            queue = await stage.queues.look("q")
            topic = await stage.topic("q")
            await drained(stage, queue)
            topic.subscriptions["queue"].cursor.reset(0)
            topic.subscriptions["queue"].save()
        counts = await stage.counts(await stage.queues.look("parts"))
        assert counts == (2, 0, 0)

    run(scenario)


def test_a_target_that_is_gone_keeps_nobody_waiting(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare("q", arguments=TO_DEAD)
        await queue.publish(published("a"))
        topic = await stage.topic("q")
        parcel = DeadLetterBatch(Reason.REJECTED, SentTo("", "dead"), 0, {"gone": [(0, 1)]})
        topic.state.put(PARCEL_KEY, Sent(1 << 62, 7, parcel).encode())
        await stage.broker.broker.unload(topic.name)
        queue = await stage.queues.get(ANN, "q")
        await drained(stage, queue)

    run(scenario)


def test_no_letter_is_handed_over_before_all_are_made(run: Callable) -> None:
    """A broker that stops between two letters leaves no coroutine that was never awaited."""

    async def scenario(stage: Any) -> None:
        queue = await stage.declare(arguments=TO_DEAD)
        dead = await stage.declare("dead")
        outbox = (await stage.topic()).letters.of(QUEUE_SUBSCRIPTION)
        hand_over, next_turn = outbox._hand_over, outbox._turns.next
        steps = []

        def handed_over(*letters: Any) -> Any:
            steps.append("handed over")
            return hand_over(*letters)

        async def waited() -> None:
            steps.append("waited")
            await next_turn()

        outbox._hand_over, outbox._turns.next = handed_over, waited
        await queue.publish(published("a"))
        consumer = await stage.consumer(queue)
        await stage.receive(consumer, 1)
        consumer.reject([(0, 1)])
        assert [body for body, *_ in await letters(dead, 1)] == ["a"]
        assert steps == ["waited", "handed over"]

    run(scenario)


def test_letters_wait_for_a_target_that_cannot_take_them_now(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        dead = await stage.declare("dead")
        queue = await stage.declare("q", arguments=TO_DEAD)
        blocker = await (await stage.topic("dead")).produce(_exclusive())
        await queue.publish(published("a"))
        consumer = await stage.consumer(queue)
        await stage.receive(consumer, 1)
        consumer.reject([(0, 1)])
        async with asyncio.timeout(60):
            await stage.runtime.clock.sleep(5)
            assert await stage.counts(dead) == (0, 0, 0)
            assert await stage.nothing(consumer)
            await blocker.close()
            assert [one[0] for one in await letters(dead, 1)] == ["a"]
        await drained(stage, queue)

    run(scenario)


def test_letters_are_not_dropped_while_a_broker_that_goes_down_loads_no_topics(
    run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(stage: Any) -> None:
        await stage.declare("dead")
        queue = await stage.declare("q", arguments=TO_DEAD)
        await queue.publish(published("a"))
        consumer = await stage.consumer(queue)
        await stage.receive(consumer, 1)
        await stage.broker.broker.unload((await stage.topic("dead")).name)
        monkeypatch.setattr(stage.broker.broker, "_closing", True)
        consumer.reject([(0, 1)])
        await stage.runtime.clock.sleep(1)
        monkeypatch.setattr(stage.broker.broker, "_closing", False)
        await drained(stage, queue)
        assert [one[0] for one in await letters(await stage.queues.get(ANN, "dead"), 1)] == ["a"]

    run(scenario)


def _exclusive() -> ProducerRequest:
    from weir.broker.api.producers import AccessMode

    return ProducerRequest(ANN, access=AccessMode.EXCLUSIVE)


def test_parcels_have_stamps_that_only_grow() -> None:
    stamps = [Sent(1 << 62, number).stamp for number in (1, 2, 32767, 32768, 32769, 70000)]
    numbers = [(stamp.producer_id, stamp.epoch) for stamp in stamps]
    assert numbers == sorted(set(numbers))
    assert all(0 <= stamp.epoch < 1 << 15 and stamp.sequence == 0 for stamp in stamps)
    parcel = DeadLetterBatch(Reason.EXPIRED, SentTo("e"), 5, {"q": ((0, 3), (7, 9))}, {1: 4})
    assert Sent.decode(Sent(5, 6, parcel).encode()) == Sent(5, 6, parcel)
    redriven = replace(parcel, to=SentTo(back_to="persistent://public/default/other"))
    assert Sent.decode(Sent(5, 7, redriven).encode()) == Sent(5, 7, redriven)
