"""The protocol as conversations, frame by frame, over a fake broker in simulated time: sessions and lookups."""

from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.api.security import Identity
from weir.model.errors import (
    NotAuthorisedError,
    StreamBusyError,
    TopicNotFoundError,
)
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.frames import MAX_MESSAGE_BYTES, NO_REQUEST, PROTOCOL_VERSION, encode_with_message
from weir.wire.pulsar.message import seal_message
from weir.wire.pulsar.proto import Message

TOPIC = "persistent://public/default/t"
Play = Callable[..., None]


# --- connecting ----------------------------------------------------------------------------------------


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


# --- keeping alive -------------------------------------------------------------------------------------


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


# --- finding topics ------------------------------------------------------------------------------------


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
        coordinator = "persistent://pulsar/system/transaction_coordinator_assign"
        peer.say(api.CommandPartitionedTopicMetadata(topic=coordinator, request_id=3))
        for name in (coordinator, f"{coordinator}-partition-0"):
            peer.say(api.CommandLookupTopic(topic=name, request_id=4))
        partitions = await peer.hear(api.CommandPartitionedTopicMetadataResponse)
        found = [await peer.hear(api.CommandLookupTopicResponse) for _ in range(2)]
        for answer in (partitions, *found):
            assert (answer.error, answer.message) == (
                api.ServerError.NotAllowedError,
                "Transactions are not supported",
            )
        await peer.produce(TOPIC)
        send = api.CommandSend(producer_id=1, sequence_id=0, txnid_most_bits=1, txnid_least_bits=1)
        head = api.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        peer.connection.write(encode_with_message(send, seal_message(head, b"x")))
        assert (await peer.hear(api.CommandSendError)).error == api.ServerError.NotAllowedError

    play(conversation)
