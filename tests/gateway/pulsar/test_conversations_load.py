"""Conversations under load, and at the end of a session, over a fake broker in simulated time."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from weir.model.batch import BatchFormat
from weir.model.errors import (
    StreamBusyError,
)
from weir.runtime.budgets import MIB, RequestBudget
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.frames import encode_command

TOPIC = "persistent://public/default/t"
Play = Callable[..., None]


@pytest.mark.parametrize("name", ["p", "another than the messages say"])
def test_a_flood_is_read_no_faster_than_it_is_stored(play: Play, name: str) -> None:
    async def conversation(stage: Any) -> None:
        peer, other = await stage.peer(), await stage.peer()
        await peer.produce(TOPIC, producer_name=name)
        topic = stage.broker.at(TOPIC)
        topic.held_back = True
        for sequence in range(500):
            peer.send(1, sequence)
        await stage.later(100)  # and being held back is not being silent
        assert len(topic.producers[0].waiting) == 10
        other.say(api.CommandPing())
        frame = await other.frame()
        while not isinstance(frame.command, api.CommandPong):
            frame = await other.frame()
        for _ in range(50):
            topic.producers[0].store()
            await stage.later(0.1)
        receipts = [(await peer.hear(api.CommandSendReceipt)).sequence_id for _ in range(500)]
        assert receipts == list(range(500))

    play(conversation, max_publishes=10, idle_timeout_s=150)


def test_a_producer_that_must_rest_is_not_read(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        producer = stage.broker.at(TOPIC).producers[0]
        producer.rested.clear()
        peer.send(1, 0)
        await peer.hear(api.CommandSendReceipt)
        peer.say(api.CommandPing())
        await stage.later(500)
        producer.rested.set()
        await peer.hear(api.CommandPong)

    play(conversation)


def test_requests_at_a_time_are_bounded(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        stage.broker.answering.clear()
        peer.say(*(api.CommandLookupTopic(topic=TOPIC, request_id=at) for at in range(50)))
        await stage.later(5)
        session = next(iter(stage.server.sessions))
        assert session.load.requests == 4
        stage.broker.answering.set()
        answered = [(await peer.hear(api.CommandLookupTopicResponse)).request_id for _ in range(50)]
        assert sorted(answered) == list(range(50))

    play(conversation, max_requests=4)


def test_links_are_bounded(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        for at in range(3):
            await peer.produce(TOPIC, at)
        peer.say(api.CommandProducer(topic=TOPIC, producer_id=4, request_id=1))
        assert (await peer.hear(api.CommandError)).error == api.ServerError.TooManyRequests

    play(conversation, max_links=3)


def test_a_client_that_does_not_read_is_cut_off(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        topic = await stage.fill(1)
        topic.replace_last(payload=bytes(topic.batches[0].payload) + bytes(1_000_000))
        for at in range(1, 40):
            topic.batches.append(
                topic.batches[0].__class__(at, 1, BatchFormat.PULSAR, 0, topic.batches[0].payload)
            )
        peer = await stage.peer()
        await peer.subscribe(TOPIC)
        peer.say(api.CommandFlow(consumer_id=1, messagePermits=1))
        for _ in range(200):
            peer.say(api.CommandFlow(consumer_id=1, messagePermits=1))
            await stage.later(1)
            if not topic.consumers:
                break
        assert topic.consumers == []

    play(conversation)


def test_connections_are_bounded(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peers = [await stage.peer() for _ in range(20)]
        late = await stage.stranger()
        assert (await late.hear(api.CommandError)).error == api.ServerError.TooManyRequests
        assert await late.hangs_up()
        peers[0].connection.close()
        await stage.later(1)
        await stage.peer()

    play(conversation)


def test_a_server_that_stops_stores_what_it_took(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        topic = stage.broker.at(TOPIC)
        topic.held_back = True
        peer.send(1, 0)
        await stage.later(1)
        producer = topic.producers[0]
        for session in stage.server.sessions:
            session.end(StreamBusyError("going down"))
        await stage.later(0.5)
        producer.store()
        await peer.hear(api.CommandSendReceipt)
        await peer.hear(api.CommandError)
        assert await peer.hangs_up()

    play(conversation)


def test_an_unknown_command_is_told_and_survived(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        body = bytes((0x08, 99))
        peer.connection.write([(4 + len(body)).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body])
        assert (await peer.hear(api.CommandError)).error == api.ServerError.UnsupportedVersionError
        peer.say(api.CommandPing())
        await peer.hear(api.CommandPong)

    play(conversation)


def test_a_brokers_command_from_a_client_ends_the_session(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        peer.connection.write([encode_command(api.CommandSuccess(request_id=1))])
        while (frame := await peer.frame()) is not None:
            assert isinstance(frame.command, api.CommandError)

    play(conversation)


def test_half_of_a_frame_that_others_wait_behind_is_ended_after_a_while(play: Play) -> None:
    """What all connections receive at a time has one bound."""

    async def conversation(stage: Any) -> None:
        request_budget = RequestBudget(6 * MIB)
        stage.server._services = replace(stage.server._services, request_budget=request_budget)
        half, peer = await stage.peer(), await stage.peer()
        await peer.produce(TOPIC)
        half.connection.write([(3 * MIB).to_bytes(4, "big") + bytes(MIB)])
        await stage.later(1)
        peer.send(1, 0, bytes(2 * MIB))
        await stage.later(1)
        assert (request_budget.waiting, request_budget.used_bytes) == (1, 3 * MIB)
        assert (await peer.hear(api.CommandSendReceipt)).sequence_id == 0
        assert (request_budget.waiting, request_budget.used_bytes) == (0, 0)
        assert len(stage.server.sessions) == 1

    play(conversation)
