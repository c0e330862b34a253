"""No connection holds the loop: what its commands make the broker do is cut into turns."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.api.producers import Outgoing
from weir.model.batch import BatchFormat
from weir.model.check import STEP_MESSAGES
from weir.wire.kafka.records import Record, build_batch
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.batch import iter_batch, open_payload
from weir.wire.pulsar.message import parse_metadata, split_message

TOPIC = "persistent://public/default/t"
Play = Callable[..., None]
BATCH = 20_000
#: Ranges of offsets, or ids, that one step of the loop may see.
MOST = 2_500


def step() -> int:
    """Which step of the simulated loop this is."""
    return asyncio.get_running_loop().steps  # type: ignore[attr-defined, no-any-return]


def most_per_step(seen: list[tuple[int, int]]) -> int:
    sums: dict[int, int] = {}
    for at, count in seen:
        sums[at] = sums.get(at, 0) + count
    return max(sums.values())


def watch(consumer: Any, verb: str) -> list[tuple[int, int]]:
    """In which step of the loop how many ranges were given to the broker."""
    seen: list[tuple[int, int]] = []
    plain = getattr(consumer, verb)

    def watched(ranges: Any = None) -> None:
        seen.append((step(), len(ranges or ())))
        plain(ranges)

    setattr(consumer, verb, watched)
    return seen


async def subscribed(stage: Any, *counts: int) -> tuple[Any, Any, list[Any]]:
    """A peer that was sent all batches of a shared subscription, its consumer, and their ids."""
    topic = await stage.fill(*counts)
    peer = await stage.peer()
    await peer.subscribe(TOPIC, subType=api.CommandSubscribe.Shared)
    peer.say(api.CommandFlow(consumer_id=1, messagePermits=2**30))
    ids = [(await peer.message())[0].message_id for _ in counts]
    return peer, topic.consumers[0], ids


def with_set(at: Any, words: list[int]) -> Any:
    return api.MessageIdData(ledgerId=at.ledgerId, entryId=at.entryId, ack_set=words)


def test_every_other_message_of_a_large_batch_is_acknowledged_in_turns(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer, consumer, (at,) = await subscribed(stage, BATCH)
        seen = watch(consumer, "ack")
        words = [0x5555555555555555] * -(-BATCH // 64)
        peer.say(api.CommandAck(consumer_id=1, ack_type=0, message_id=[with_set(at, words)], request_id=7))
        assert (await peer.hear(api.CommandAckResponse)).request_id == 7
        assert consumer.acked == [(offset, offset + 1) for offset in range(1, BATCH, 2)]
        assert most_per_step(seen) <= MOST

    play(conversation)


def test_a_cumulative_acknowledgement_within_a_large_batch_is_cut_as_well(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer, consumer, (at,) = await subscribed(stage, BATCH)
        seen = watch(consumer, "ack")
        words = [0x5555555555555555] * -(-BATCH // 64)
        peer.say(api.CommandAck(consumer_id=1, ack_type=1, message_id=[with_set(at, words)], request_id=7))
        await peer.hear(api.CommandAckResponse)
        assert len(consumer.acked) == BATCH // 2
        assert most_per_step(seen) <= MOST

    play(conversation)


def test_what_was_delivered_to_an_earlier_connection_is_acknowledged_in_turns(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        _, _, (at,) = await subscribed(stage, BATCH)
        peer = await stage.peer()
        await peer.subscribe(TOPIC, subType=api.CommandSubscribe.Shared)
        consumer = stage.broker.at(TOPIC).consumers[-1]
        seen = watch(consumer, "ack")
        words = [0x5555555555555555] * -(-BATCH // 64)
        peer.say(api.CommandAck(consumer_id=1, ack_type=0, message_id=[with_set(at, words)], request_id=7))
        await peer.hear(api.CommandAckResponse)
        assert len(consumer.acked) == BATCH // 2
        assert most_per_step(seen) <= MOST

    play(conversation)


def test_a_command_of_many_ids_lets_others_in_between_and_keeps_the_order_of_its_connection(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer, consumer, (at, last) = await subscribed(stage, 1, 1)
        seen: list[tuple[int, int]] = []
        links = next(s for s in stage.server.sessions if len(list(s.consumers))).consumers
        unacked = links.live(1).unacked
        plain = unacked.ack

        def watched(*args: Any) -> Any:
            seen.append((step(), 1))
            return plain(*args)

        unacked.ack = watched
        one_by_one = [with_set(at, [1]) for _ in range(BATCH)]
        peer.say(
            api.CommandAck(consumer_id=1, ack_type=0, message_id=one_by_one, request_id=7),
            api.CommandAck(consumer_id=1, ack_type=0, message_id=[last]),
            api.CommandPing(),
        )
        heard = [type((await peer.frame()).command) for _ in range(2)]
        assert sorted(kind.__name__ for kind in heard) == ["CommandAckResponse", "CommandPong"]
        assert len(seen) == BATCH + 1
        assert most_per_step(seen) <= MOST
        assert consumer.acked == [(1, 2)]

    play(conversation)


@pytest.mark.slow
def test_many_messages_are_asked_for_again_in_turns(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer, consumer, ids = await subscribed(stage, *[1] * 3000)
        seen = watch(consumer, "redeliver")
        peer.say(api.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids), api.CommandPing())
        while not isinstance((await peer.frame()).command, api.CommandPong):
            pass
        assert sum(count for _, count in seen) == 3000
        assert most_per_step(seen) <= 512

    play(conversation)


def test_commands_that_are_served_by_tasks_are_taken_a_few_at_a_time(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        begun: list[tuple[int, int]] = []
        session = stage.server.sessions[-1]
        spawn = session.tasks.spawn

        def watched(work: Any, name: str) -> Any:
            begun.append((step(), 1))
            return spawn(work, name)

        session.tasks.spawn = watched
        peer.say(*(api.CommandLookupTopic(topic=TOPIC, request_id=at) for at in range(500)))
        for _ in range(500):
            await peer.hear(api.CommandLookupTopicResponse)
        assert most_per_step(begun) <= 64

    play(conversation)


def test_a_large_batch_of_another_protocol_is_translated_in_turns(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        topic = await stage.fill(1)
        records = build_batch([Record(at, 1, None, b"x") for at in range(5000)])
        topic.append(Outgoing(records, 5000, BatchFormat.KAFKA))
        peer = await stage.peer()
        await peer.subscribe(TOPIC)
        begun = step()
        peer.say(api.CommandFlow(consumer_id=1, messagePermits=10_000))
        await peer.message()
        _, message = await peer.message()
        parts = split_message(memoryview(message))
        metadata = parse_metadata(parts)
        found = list(iter_batch(open_payload(metadata, parts.payload), 5000))
        assert [bytes(single.payload) for single in found] == [b"x"] * 5000
        assert step() - begun > 2 * 5000 // STEP_MESSAGES  # opened and put together, a few hundred at a time

    play(conversation)
