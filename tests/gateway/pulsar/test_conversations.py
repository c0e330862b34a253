"""The protocol as conversations, frame by frame, over a fake broker in simulated time."""

from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.api import Identity, Owner
from weir.model.batch import BatchFormat
from weir.model.errors import (
    NotAuthorisedError,
    ProducerClosedError,
    QuotaExceededError,
    StreamBusyError,
    TopicNotFoundError,
)
from weir.model.topics import TopicName
from weir.wire.pulsar.frames import MAX_MESSAGE_BYTES, PROTOCOL_VERSION, encode_command, encode_with_message
from weir.wire.pulsar.ids import ack_set_from_bits
from weir.wire.pulsar.message import seal_message, split_message
from weir.wire.pulsar.proto import Message, api
from weir.wire.pulsar.refusals import NO_REQUEST

TOPIC = "persistent://public/default/t"
Play = Callable[..., None]


# --- connecting -----------------------------------------------------------------------------------------


def test_a_connect_is_answered_with_what_the_broker_speaks(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        connected = await (await stage.stranger()).greet()
        assert connected.protocol_version == 20
        assert connected.max_message_size == MAX_MESSAGE_BYTES
        assert connected.feature_flags.supports_topic_watchers

    play(conversation)


def test_an_older_client_is_spoken_to_in_its_version(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        for version, agreed in ((8, 8), (99, PROTOCOL_VERSION)):
            peer = await stage.stranger()
            peer.say(api.CommandConnect(client_version="old", protocol_version=version))
            assert (await peer.hear(api.CommandConnected)).protocol_version == agreed

    play(conversation)


def test_nothing_comes_before_the_connect(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.stranger()
        peer.say(api.CommandLookupTopic(topic=TOPIC, request_id=1))
        refused = await peer.hear(api.CommandLookupTopicResponse)
        assert refused.error == api.ServerError.NotAllowedError
        assert (await peer.hear(api.CommandError)).request_id == NO_REQUEST
        assert await peer.hangs_up()

    play(conversation)


def test_nobody_connects_twice(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        peer.say(api.CommandConnect(client_version="again"))
        assert (await peer.hear(api.CommandError)).error == api.ServerError.NotAllowedError
        peer.say(api.CommandPing())
        await peer.hear(api.CommandPong)

    play(conversation)


def test_who_never_connects_is_sent_away(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        assert await (await stage.stranger()).hangs_up()

    play(conversation)


def test_bad_credentials_are_told_and_sent_away(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        stage.broker.identities = {b"good": Identity("me")}
        peer = await stage.stranger()
        peer.say(api.CommandConnect(client_version="c", auth_method_name="token", auth_data=b"bad"))
        assert (await peer.hear(api.CommandError)).error == api.ServerError.AuthenticationError
        assert await peer.hangs_up()
        await stage.peer(auth_method_name="token", auth_data=b"good")

    play(conversation)


def test_nobody_speaks_for_somebody_else(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.stranger()
        peer.say(api.CommandConnect(client_version="proxy", original_principal="another"))
        assert (await peer.hear(api.CommandError)).error == api.ServerError.NotAllowedError
        assert await peer.hangs_up()

    play(conversation)


REFRESH = api.FeatureFlags(supports_auth_refresh=True)


def test_credentials_are_asked_for_again(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        now_ms = stage.runtime.clock.wall_ms()
        stage.broker.identities = {
            b"one": Identity("me", now_ms + 120_000),
            b"two": Identity("me", now_ms + 240_000),
            b"other": Identity("you"),
        }
        peer = await stage.peer(auth_method_name="token", auth_data=b"one", feature_flags=REFRESH)

        async def challenged() -> float:
            while not isinstance((frame := await peer.frame()).command, api.CommandAuthChallenge):
                assert isinstance(frame.command, api.CommandPing)
                peer.say(api.CommandPong())
            assert frame.command.challenge.auth_data == b"PulsarAuthRefresh"
            return (stage.runtime.clock.wall_ms() - now_ms) / 1000

        assert 59 < await challenged() < 62
        peer.say(api.CommandAuthResponse(response=api.AuthData(auth_method_name="token", auth_data=b"two")))
        assert 149 < await challenged() < 182
        peer.say(api.CommandAuthResponse(response=api.AuthData(auth_method_name="token", auth_data=b"other")))
        assert (await peer.hear(api.CommandError)).error == api.ServerError.AuthenticationError
        assert await peer.hangs_up()

    play(conversation)


@pytest.mark.parametrize("features", [REFRESH, api.FeatureFlags()], ids=["asked", "not asked"])
def test_a_session_ends_with_its_credentials(play: Play, features: api.FeatureFlags) -> None:
    async def conversation(stage: Any) -> None:
        now_ms = stage.runtime.clock.wall_ms()
        stage.broker.identities = {b"one": Identity("me", now_ms + 20_000)}
        peer = await stage.peer(auth_method_name="token", auth_data=b"one", feature_flags=features)
        if features.supports_auth_refresh:
            await peer.hear(api.CommandAuthChallenge)
        assert (await peer.hear(api.CommandError)).error == api.ServerError.AuthenticationError
        assert 19_900 < stage.runtime.clock.wall_ms() - now_ms < 21_000

    play(conversation)


# --- keeping alive --------------------------------------------------------------------------------------


def test_a_ping_is_answered(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        peer.say(api.CommandPing())
        await peer.hear(api.CommandPong)

    play(conversation)


def test_a_silent_client_is_pinged_and_then_sent_away(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        for _ in range(3):
            await peer.hear(api.CommandPing)
            peer.say(api.CommandPong())
        await peer.hear(api.CommandPing)
        assert await peer.hangs_up()

    play(conversation)


# --- finding topics -------------------------------------------------------------------------------------


def test_lookups_say_where_a_topic_is(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        stage.broker.elsewhere[TopicName.parse("far")] = Owner(False, "pulsar+ssl://far:6651", "")
        peer.say(api.CommandLookupTopic(topic=TOPIC, request_id=1))
        here = await peer.hear(api.CommandLookupTopicResponse)
        assert (here.response, here.brokerServiceUrl) == (
            api.CommandLookupTopicResponse.Connect,
            "pulsar://server:6650",
        )
        peer.say(api.CommandLookupTopic(topic="far", request_id=2))
        far = await peer.hear(api.CommandLookupTopicResponse)
        assert (far.response, far.brokerServiceUrl, far.brokerServiceUrlTls) == (
            api.CommandLookupTopicResponse.Redirect,
            "",
            "pulsar+ssl://far:6651",
        )

    play(conversation)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (NotAuthorisedError("no"), api.ServerError.AuthorizationError),
        (TopicNotFoundError("no"), api.ServerError.TopicNotFound),
        (StreamBusyError("no"), api.ServerError.ServiceNotReady),
        (RuntimeError("a bug"), api.ServerError.UnknownError),
    ],
)
@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (api.CommandLookupTopic(topic=TOPIC, request_id=5), api.CommandLookupTopicResponse),
        (
            api.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=5),
            api.CommandPartitionedTopicMetadataResponse,
        ),
        (api.CommandProducer(topic=TOPIC, producer_id=1, request_id=5), api.CommandError),
        (
            api.CommandSubscribe(
                topic=TOPIC,
                subscription="s",
                consumer_id=1,
                request_id=5,
                subType=api.CommandSubscribe.Shared,
            ),
            api.CommandError,
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Message) else "",
)
def test_a_refusal_is_told_in_the_commands_own_form(
    play: Play, command: Message, answer: type[Message], failure: Exception, code: int
) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        stage.broker.refusal = failure
        peer.say(command)
        refused = await peer.hear(answer)
        assert (refused.request_id, refused.error) == (5, code)
        assert "a bug" not in refused.message
        stage.broker.refusal = None
        await peer.produce(TOPIC, 1)
        await peer.subscribe(TOPIC, 1)

    play(conversation)


def test_transactions_are_not_enabled(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        peer.say(api.CommandTcClientConnectRequest(request_id=1, tc_id=0))
        assert (await peer.hear(api.CommandTcClientConnectResponse)).error == api.ServerError.NotAllowedError
        peer.say(api.CommandNewTxn(request_id=2))
        assert (await peer.hear(api.CommandNewTxnResponse)).error == api.ServerError.NotAllowedError
        await peer.produce(TOPIC)
        send = api.CommandSend(producer_id=1, sequence_id=0, txnid_most_bits=1, txnid_least_bits=1)
        head = api.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        peer.connection.write(encode_with_message(send, seal_message(head, b"x")))
        assert (await peer.hear(api.CommandSendError)).error == api.ServerError.NotAllowedError

    play(conversation)


# --- producing ------------------------------------------------------------------------------------------


def test_receipts_say_where_each_send_went(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        for sequence, count in enumerate((1, 5, 1)):
            more = {"num_messages_in_batch": count} if count > 1 else {}
            peer.send(1, sequence, **more)
        receipts = [await peer.hear(api.CommandSendReceipt) for _ in range(3)]
        assert [(r.sequence_id, r.message_id.entryId) for r in receipts] == [(0, 0), (1, 1), (2, 6)]
        assert [batch.count for batch in stage.broker.at(TOPIC).batches] == [1, 5, 1]

    play(conversation)


def test_what_the_broker_is_told_of_a_send(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        topic = stage.broker.at(TOPIC)
        topic.held_back = True
        peer.send(1, 2**64 - 1, deliver_at_time=77)
        head = api.MessageMetadata(producer_name="p", sequence_id=5, publish_time=1, num_messages_in_batch=3)
        command = api.CommandSend(producer_id=1, sequence_id=5, highest_sequence_id=7, is_chunk=True)
        message = b"".join(seal_message(head, b"abc"))
        peer.connection.write(encode_with_message(command, [message]))
        await stage.later(1)
        first, second = (outgoing for outgoing, _ in topic.producers[0].waiting)
        assert (first.sequence, first.highest_sequence, first.deliver_at_ms, first.partial) == (-1, -1, 77, False)
        assert (second.sequence, second.highest_sequence, second.count, second.partial) == (5, 7, 3, True)
        assert (second.payload, second.deliver_at_ms) == (message, None)

    play(conversation)


def test_a_wrong_checksum_is_refused_after_what_came_before(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        topic = stage.broker.at(TOPIC)
        topic.held_back = True
        peer.send(1, 0)
        head = api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
        message = bytearray(b"".join(seal_message(head, b"x")))
        message[-1] ^= 1
        peer.connection.write(encode_with_message(api.CommandSend(producer_id=1, sequence_id=1), [bytes(message)]))
        peer.send(1, 2)
        await stage.later(1)
        topic.producers[0].store()
        assert (await peer.hear(api.CommandSendReceipt)).sequence_id == 0
        refused = await peer.hear(api.CommandSendError)
        assert (refused.sequence_id, refused.error) == (1, api.ServerError.ChecksumError)
        assert (await peer.hear(api.CommandSendReceipt)).sequence_id == 2

    play(conversation)


def test_a_send_that_is_refused_for_good_is_told(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        topic = stage.broker.at(TOPIC)
        topic.held_back = True
        peer.send(1, 0)
        peer.send(1, 1)
        await stage.later(1)
        topic.producers[0].store(QuotaExceededError("full"))
        refused = await peer.hear(api.CommandSendError)
        assert (refused.sequence_id, refused.error) == (
            0,
            api.ServerError.ProducerBlockedQuotaExceededException,
        )
        topic.held_back = False
        await stage.later(1)
        peer.send(1, 2)
        assert (await peer.hear(api.CommandSendReceipt)).sequence_id == 2

    play(conversation)


def test_a_send_that_may_work_elsewhere_closes_the_producer(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        topic = stage.broker.at(TOPIC)
        topic.held_back = True
        peer.send(1, 0)
        peer.send(1, 1)
        await stage.later(1)
        topic.producers[0].store(ProducerClosedError("gone"))
        closed = await peer.hear(api.CommandCloseProducer)
        assert closed.producer_id == 1
        peer.send(1, 2)  # sent before the client knew; it will send it again
        topic.held_back = False
        await peer.produce(TOPIC, 1)
        peer.send(1, 0)
        assert (await peer.hear(api.CommandSendReceipt)).sequence_id == 0
        assert len(topic.batches) == 1

    play(conversation)


def test_the_broker_closes_a_producer(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        stage.broker.at(TOPIC).producers[0].shut("moved")
        assert (await peer.hear(api.CommandCloseProducer)).producer_id == 1

    play(conversation)


def test_a_closed_producer_has_its_receipts_first(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        topic = stage.broker.at(TOPIC)
        topic.held_back = True
        peer.send(1, 0)
        peer.say(api.CommandCloseProducer(producer_id=1, request_id=9))
        await stage.later(1)
        topic.producers[0].store()
        await peer.hear(api.CommandSendReceipt)
        assert (await peer.hear(api.CommandSuccess)).request_id == 9
        assert topic.producers == []
        peer.say(api.CommandCloseProducer(producer_id=1, request_id=10))
        assert (await peer.hear(api.CommandSuccess)).request_id == 10

    play(conversation)


def test_a_waiting_producer_is_told_twice(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        topic = stage.broker.at(TOPIC)
        topic.busy = True
        peer.say(
            api.CommandProducer(
                topic=TOPIC, producer_id=1, request_id=3, producer_access_mode=api.WaitForExclusive
            )
        )
        waiting = await peer.hear(api.CommandProducerSuccess)
        assert (waiting.request_id, waiting.producer_ready) == (3, False)
        peer.send(1, 0)
        assert (await peer.hear(api.CommandSendError)).error == api.ServerError.NotAllowedError
        topic.producers[0].may_send.set()
        ready = await peer.hear(api.CommandProducerSuccess)
        assert (ready.request_id, ready.producer_ready) == (3, True)
        peer.send(1, 0)
        await peer.hear(api.CommandSendReceipt)

    play(conversation)


def test_a_producer_that_is_given_up_while_it_is_made(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        stage.broker.answering.clear()
        peer.say(api.CommandProducer(topic=TOPIC, producer_id=1, request_id=3))
        peer.say(api.CommandProducer(topic=TOPIC, producer_id=1, request_id=4))
        assert (await peer.hear(api.CommandError)).error == api.ServerError.ServiceNotReady
        peer.say(api.CommandCloseProducer(producer_id=1, request_id=5))
        assert (await peer.hear(api.CommandSuccess)).request_id == 5
        stage.broker.answering.set()
        assert (await peer.hear(api.CommandError)).request_id == 3
        assert stage.broker.at(TOPIC).producers == []

    play(conversation)


def test_who_hangs_up_leaves_nothing_behind(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        await peer.subscribe(TOPIC)
        topic = stage.broker.at(TOPIC)
        assert (len(topic.producers), len(topic.consumers)) == (1, 1)
        peer.connection.abort()
        await stage.later(1)
        assert (topic.producers, topic.consumers, stage.server.connections) == ([], [], 0)

    play(conversation)


# --- consuming ------------------------------------------------------------------------------------------


async def fill(stage: Any, *counts: int) -> Any:
    """A topic with batches of these sizes, sent by another client."""
    peer = await stage.peer()
    await peer.produce(TOPIC)
    for sequence, count in enumerate(counts):
        peer.send(1, sequence, b"%d" % sequence, **({"num_messages_in_batch": count} if count > 1 else {}))
        await peer.hear(api.CommandSendReceipt)
    return stage.broker.at(TOPIC)


def place(entry: int, **more: Any) -> api.MessageIdData:
    return api.MessageIdData(ledgerId=7, entryId=entry, **more)


def test_messages_come_as_credit_allows(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        await fill(stage, 1, 1, 5, 1)
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
        topic = await fill(stage, 3)
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
        topic = await fill(stage, 1, 5, 1, 70)
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


def test_cumulative_acknowledgements_become_offsets(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        topic = await fill(stage, 1, 5, 5, 5, 1)
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
        topic = await fill(stage, 1, 5, 5)
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


def test_redelivery_is_asked_for_by_id_or_for_all(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        topic = await fill(stage, 1, 5)
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
        topic = await fill(stage, 1, 1)
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
        topic = await fill(stage, 1, 5, 1)
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
        topic = await fill(stage, 1, 5)
        for acked, mark in ((-1, 2**64 - 1), (0, 0), (3, 0), (5, 1)):
            topic.cursors["s"] = acked + 1
            peer.say(api.CommandGetLastMessageId(consumer_id=1, request_id=2))
            answer = await peer.hear(api.CommandGetLastMessageIdResponse)
            assert (answer.last_message_id.entryId, answer.last_message_id.batch_index) == (1, 4)
            assert answer.consumer_mark_delete_position.entryId == mark

    play(conversation)


def test_the_end_of_a_terminated_topic_is_told_once(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        topic = await fill(stage, 1)
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
        await fill(stage, 1, 5)
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


# --- load -----------------------------------------------------------------------------------------------


def test_a_flood_is_read_no_faster_than_it_is_stored(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer, other = await stage.peer(), await stage.peer()
        await peer.produce(TOPIC)
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
        topic = await fill(stage, 1)
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
