"""Conversations of consumers, frame by frame, over a fake broker in simulated time."""

from collections.abc import Callable
from typing import Any

from weir.model.errors import BookieUnavailableError
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.ids import ack_set_from_bits
from weir.wire.pulsar.message import split_message

TOPIC = "persistent://public/default/t"
Play = Callable[..., None]


def place(entry: int, **more: Any) -> api.MessageIdData:
    return api.MessageIdData(ledgerId=7, entryId=entry, **more)


def test_messages_come_as_credit_allows(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        await stage.fill(1, 1, 5, 1)
        peer = await stage.peer()
        await peer.subscribe(TOPIC)
        peer.say(api.CommandFlow(consumer_id=1, messagePermits=1))
        command, message = await peer.message()
        assert (command.message_id.ledgerId, command.message_id.entryId) == (7, 0)
        assert split_message(message).payload == b"0"
        peer.say(api.CommandFlow(consumer_id=1, messagePermits=2))
        assert [(await peer.message())[0].message_id.entryId for _ in range(2)] == [1, 2]
        # The batch of five took four more than there was, so three more are not enough.
        peer.say(api.CommandFlow(consumer_id=1, messagePermits=4), api.CommandPing())
        await peer.hear(api.CommandPong)
        peer.say(api.CommandFlow(consumer_id=1, messagePermits=1))
        assert (await peer.message())[0].message_id.entryId == 7

    play(conversation)


def test_the_stored_bytes_come_back_with_the_brokers_own_in_front(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        topic = await stage.fill(3)
        flags = api.FeatureFlags(supports_broker_entry_metadata=True)
        peer = await stage.peer(feature_flags=flags)
        await peer.subscribe(TOPIC)
        peer.say(api.CommandFlow(consumer_id=1, messagePermits=10))
        _, message = await peer.message()
        parts = split_message(message)
        entry = api.BrokerEntryMetadata.FromString(bytes(parts.broker_entry or b""))
        assert (entry.index, entry.broker_timestamp) == (2, 1_700_000_000_000)
        assert bytes(message).endswith(bytes(topic.batches[0].payload))

    play(conversation)


def test_acknowledgements_become_offsets(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        topic = await stage.fill(1, 5, 1, 70)
        peer = await stage.peer()
        await peer.subscribe(TOPIC)
        peer.say(api.CommandFlow(consumer_id=1, messagePermits=100))
        for _ in range(4):
            await peer.message()
        consumer = topic.consumers[0]

        async def ack(*ids: api.MessageIdData, kind: Any = api.CommandAck.Individual) -> None:
            peer.say(api.CommandAck(consumer_id=1, ack_type=kind, message_id=ids, request_id=1))
            await peer.hear(api.CommandAckResponse)

        await ack(place(0), place(6))
        assert consumer.acked == [(0, 1), (6, 7)]
        await ack(place(1, ack_set=ack_set_from_bits(0b10111)))
        await ack(place(1, ack_set=ack_set_from_bits(0b10001)))
        assert consumer.acked[2:] == [(4, 5), (2, 4)]
        await ack(place(1))
        assert consumer.acked[4:] == [(1, 2), (5, 6)]
        await ack(place(7, ack_set=ack_set_from_bits(((1 << 70) - 1) & ~(0b11 << 63))))
        assert consumer.acked[6:] == [(70, 72)]
        await ack(place(999), api.MessageIdData(ledgerId=3, entryId=0))
        assert len(consumer.acked) == 7

    play(conversation)


def test_an_acknowledgement_is_answered_only_when_it_is_durable(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        topic = await stage.fill(1, 1, 1)
        peer = await stage.peer()
        await peer.subscribe(TOPIC)
        peer.say(api.CommandFlow(consumer_id=1, messagePermits=100))
        for _ in range(3):
            await peer.message()
        consumer = topic.consumers[0]
        consumer.durable.clear()
        for entry in range(3):
            kind = api.CommandAck.Individual
            peer.say(api.CommandAck(consumer_id=1, ack_type=kind, message_id=[place(entry)], request_id=entry))
        await stage.later(10)
        assert consumer.acked == [(0, 1), (1, 2), (2, 3)]
        peer.say(api.CommandPing())
        await peer.hear(api.CommandPong)  # nothing was answered before it
        consumer.durable.set()
        answers = [await peer.hear(api.CommandAckResponse) for _ in range(3)]
        assert [(answer.request_id, answer.HasField("error")) for answer in answers] == [
            (0, False),
            (1, False),
            (2, False),
        ]

    play(conversation)


def test_acknowledgements_that_await_their_answer_are_bounded(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        topic = await stage.fill(*[1] * 50)
        peer = await stage.peer()
        await peer.subscribe(TOPIC)
        peer.say(api.CommandFlow(consumer_id=1, messagePermits=100))
        for _ in range(50):
            await peer.message()
        consumer = topic.consumers[0]
        consumer.durable.clear()
        for entry in range(50):
            kind = api.CommandAck.Individual
            peer.say(api.CommandAck(consumer_id=1, ack_type=kind, message_id=[place(entry)], request_id=entry))
        await stage.later(1)
        assert len(consumer.acked) == 10
        consumer.durable.set()
        answers = [(await peer.hear(api.CommandAckResponse)).request_id for _ in range(50)]
        assert answers == list(range(50))
        assert len(consumer.acked) == 50

    play(conversation, max_requests=10)


def test_cumulative_acknowledgements_become_offsets(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        topic = await stage.fill(1, 5, 5, 5, 1)
        peer = await stage.peer()
        await peer.subscribe(TOPIC)
        peer.say(api.CommandFlow(consumer_id=1, messagePermits=100))
        for _ in range(5):
            await peer.message()
        consumer = topic.consumers[0]

        async def ack(at: api.MessageIdData) -> None:
            kind = api.CommandAck.Cumulative
            peer.say(api.CommandAck(consumer_id=1, ack_type=kind, message_id=[at], request_id=1))
            await peer.hear(api.CommandAckResponse)

        await ack(place(0))  # a whole entry
        await ack(place(5))  # the entry before one, where a batch is half done
        await ack(place(6, ack_set=ack_set_from_bits(0b11100)))  # a part of a batch
        await ack(place(11))  # a whole batch
        assert consumer.acked_up_to == [0, 5, 5, 15]
        assert consumer.acked == [(6, 8)]

    play(conversation)


def test_what_another_connection_delivered_is_found_in_the_log(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        topic = await stage.fill(1, 5, 5)
        peer = await stage.peer()
        await peer.subscribe(TOPIC)
        consumer = topic.consumers[0]
        individual, cumulative = api.CommandAck.Individual, api.CommandAck.Cumulative
        for kind, at in (
            (individual, place(1)),
            (individual, place(6, ack_set=ack_set_from_bits(0b11110))),
            (cumulative, place(6)),
            (cumulative, place(5)),
            (individual, place(3)),  # no entry begins there
        ):
            peer.say(api.CommandAck(consumer_id=1, ack_type=kind, message_id=[at]))
        await stage.later(1)
        assert consumer.acked == [(1, 6), (6, 7)]
        assert consumer.acked_up_to == [10, 5]

    play(conversation)


def test_an_acknowledgement_that_cannot_be_looked_up_is_not_confirmed(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        topic = await stage.fill(1, 5, 5)
        peer = await stage.peer()
        await peer.subscribe(TOPIC)
        read = topic.read

        async def fail(*_: Any) -> Any:
            raise BookieUnavailableError("the bookie is down")

        individual = api.CommandAck.Individual
        codes = []
        for request, reading in enumerate((fail, read)):
            topic.read = reading
            peer.say(api.CommandAck(consumer_id=1, ack_type=individual, message_id=[place(1)], request_id=request))
            answer = await peer.hear(api.CommandAckResponse)
            assert answer.request_id == request
            codes.append(answer.HasField("error"))
        assert codes == [True, False]
        assert topic.consumers[0].acked == [(1, 6)]

    play(conversation)


def test_redelivery_is_asked_for_by_id_or_for_all(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        topic = await stage.fill(1, 5)
        peer = await stage.peer()
        await peer.subscribe(TOPIC)
        peer.say(api.CommandFlow(consumer_id=1, messagePermits=100))
        for _ in range(2):
            await peer.message()
        again = api.CommandRedeliverUnacknowledgedMessages
        peer.say(
            again(consumer_id=1, message_ids=[place(1), place(77)]), again(consumer_id=1), again(consumer_id=9)
        )
        await stage.later(1)
        assert topic.consumers[0].redelivered == [[(1, 6)], None]

    play(conversation)


def test_an_epoch_goes_with_what_is_delivered_after_it(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        topic = await stage.fill(1, 1)
        peer = await stage.peer()
        await peer.subscribe(TOPIC, consumer_epoch=0)
        peer.say(api.CommandFlow(consumer_id=1, messagePermits=2))
        for _ in range(2):
            assert (await peer.message())[0].consumer_epoch == 0
        peer.say(api.CommandRedeliverUnacknowledgedMessages(consumer_id=1, consumer_epoch=4))
        await stage.later(1)
        topic.cursors["s"] = 0
        topic.changed()
        peer.say(api.CommandFlow(consumer_id=1, messagePermits=2))
        assert (await peer.message())[0].consumer_epoch == 4

    play(conversation)


def test_a_seek_closes_the_consumer_before_it_succeeds(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        topic = await stage.fill(1, 5, 1)
        for seek, offset in (
            (api.CommandSeek(consumer_id=1, request_id=7, message_id=place(1, batch_index=3)), 4),
            (
                api.CommandSeek(
                    consumer_id=1, request_id=7, message_id=place(1, ack_set=ack_set_from_bits(0b11100))
                ),
                3,
            ),
            (api.CommandSeek(consumer_id=1, request_id=7, message_publish_time=1), 0),
        ):
            peer = await stage.peer()
            await peer.subscribe(TOPIC)
            peer.say(seek)
            assert (await peer.hear(api.CommandCloseConsumer)).consumer_id == 1
            assert (await peer.hear(api.CommandSuccess)).request_id == 7
            assert topic.cursors["s"] == offset
        peer.say(api.CommandSeek(consumer_id=1, request_id=8))
        assert (await peer.hear(api.CommandError)).request_id == 8

    play(conversation)


def test_a_failover_consumer_learns_whether_it_is_active(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.subscribe(TOPIC, subType=api.CommandSubscribe.Failover)
        assert (await peer.hear(api.CommandActiveConsumerChange)).is_active
        stage.broker.at(TOPIC).consumers[0].set_active(False)
        assert not (await peer.hear(api.CommandActiveConsumerChange)).is_active

    play(conversation)


def test_the_last_message_and_the_mark(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.subscribe(TOPIC)
        peer.say(api.CommandGetLastMessageId(consumer_id=1, request_id=1))
        empty = await peer.hear(api.CommandGetLastMessageIdResponse)
        assert (empty.last_message_id.ledgerId, empty.last_message_id.entryId) == (2**64 - 1, 2**64 - 1)
        topic = await stage.fill(1, 5)
        for acked, mark in ((-1, 2**64 - 1), (0, 0), (3, 0), (5, 1)):
            topic.cursors["s"] = acked + 1
            peer.say(api.CommandGetLastMessageId(consumer_id=1, request_id=2))
            answer = await peer.hear(api.CommandGetLastMessageIdResponse)
            assert (answer.last_message_id.entryId, answer.last_message_id.batch_index) == (1, 4)
            assert answer.consumer_mark_delete_position.entryId == mark

    play(conversation)


def test_the_end_of_a_terminated_topic_is_told_once(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        topic = await stage.fill(1)
        peer = await stage.peer(client_version="Pulsar-Java-v4.0.0")
        await peer.subscribe(TOPIC)
        topic.terminated = True
        await stage.later(3)  # there is a message left
        peer.say(api.CommandFlow(consumer_id=1, messagePermits=10))
        await peer.message()
        assert (await peer.hear(api.CommandReachedEndOfTopic)).consumer_id == 1
        await stage.later(3)
        peer.say(api.CommandPing())
        await peer.hear(api.CommandPong)

    play(conversation)


def test_stats_of_a_consumer(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        await stage.fill(1, 5)
        peer = await stage.peer()
        await peer.subscribe(TOPIC, consumer_name="me")
        peer.say(api.CommandFlow(consumer_id=1, messagePermits=10))
        for _ in range(2):
            await peer.message()
        peer.say(api.CommandConsumerStats(consumer_id=1, request_id=4))
        stats = await peer.hear(api.CommandConsumerStatsResponse)
        assert (stats.consumerName, stats.unackedMessages, stats.availablePermits) == ("me", 6, 4)
        assert stats.type == "Exclusive"
        peer.say(api.CommandConsumerStats(consumer_id=2, request_id=5))
        assert (await peer.hear(api.CommandConsumerStatsResponse)).error_code == api.ServerError.NotAllowedError

    play(conversation)


def test_unsubscribing_is_not_followed_by_a_close(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.subscribe(TOPIC)
        peer.say(api.CommandUnsubscribe(consumer_id=1, request_id=3), api.CommandPing())
        heard = [type((await peer.frame()).command) for _ in range(2)]
        assert sorted(kind.__name__ for kind in heard) == ["CommandPong", "CommandSuccess"]
        assert "s" not in stage.broker.at(TOPIC).cursors
        await peer.subscribe(TOPIC, 1)

    play(conversation)
