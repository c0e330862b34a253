"""Transcripts of sessions: order, versions, credentials, bad bytes, floods and time-outs."""

from typing import Any

import pytest

from weir.broker.api.security import Identity
from weir.gateway.kafka.api_table import HANDLERS
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.settings import KafkaSettings
from weir.model.errors import ConnectionLostError
from weir.testing.kafka.stage import Peer, Stage, batch_of, play
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey


def plain(password: bytes) -> m.SaslAuthenticateRequest:
    return m.SaslAuthenticateRequest(auth_bytes=b"\0anybody\0" + password)


async def api_versions(peer: Peer, version: int = 3) -> Any:
    request = m.ApiVersionsRequest(client_software_name="peer", client_software_version="1.0")
    return await peer.call(ApiKey.API_VERSIONS, version, request)


@pytest.mark.parametrize("version", range(5))
def test_a_client_is_told_of_every_api_that_is_served(version: int) -> None:
    async def conversation(stage: Stage) -> None:
        answer = await api_versions(await stage.peer(), version)
        assert answer.error_code == Code.NONE
        assert [each.api_key for each in answer.api_keys] == sorted(HANDLERS)
        produce = answer.api_keys[0]
        assert (produce.min_version, HANDLERS[ApiKey.PRODUCE].first) == (0, 3)

    play(conversation)


def test_a_version_of_the_first_request_that_nobody_knows_is_answered_in_version_0() -> None:
    async def conversation(stage: Stage) -> None:
        peer = await stage.peer()
        peer.say(bytes.fromhex("0012 7fff 00000007 0004") + b"peer" + b"\0\0\0\0")
        peer.asked.append((ApiKey.API_VERSIONS, 0, 7))
        answer = await peer.hear()
        assert answer.error_code == Code.UNSUPPORTED_VERSION
        assert ApiKey.API_VERSIONS in [each.api_key for each in answer.api_keys]
        assert (await api_versions(peer)).error_code == Code.NONE

    play(conversation)


@pytest.mark.parametrize("name", ["", "-x", "a b", "x\u00fc"])
def test_a_client_software_that_names_itself_oddly_is_refused(name: str) -> None:
    async def conversation(stage: Stage) -> None:
        request = m.ApiVersionsRequest(client_software_name=name, client_software_version="1")
        answer = await (await stage.peer()).call(ApiKey.API_VERSIONS, 3, request)
        assert answer.error_code == Code.INVALID_REQUEST

    play(conversation)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\0\0\0", id="half a header"),
        pytest.param(bytes.fromhex("03e7 0000 00000001 ffff"), id="an unknown API"),
        pytest.param(bytes.fromhex("0000 0002 00000001 ffff"), id="a produce before version 3"),
        pytest.param(bytes.fromhex("0001 0063 00000001 ffff 00"), id="a fetch of the future"),
        pytest.param(bytes.fromhex("0003 0009 00000001 ffff 00 ff"), id="a cut metadata request"),
        pytest.param(bytes.fromhex("0003 0001 00000001 0010 41"), id="a cut client id"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
    ],
)
def test_bytes_that_are_no_request_end_the_connection_and_nothing_else(frame: bytes) -> None:
    async def conversation(stage: Stage) -> None:
        peer, other = await stage.peer(), await stage.peer()
        peer.say(frame)
        assert await peer.hangs_up()
        assert (await api_versions(other)).error_code == Code.NONE
        assert stage.server.metrics.refused == 1

    play(conversation)


@pytest.mark.parametrize("size", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x00\x01\x00\x01"])
def test_a_frame_over_the_limit_is_refused_before_it_is_read(size: bytes) -> None:
    async def conversation(stage: Stage) -> None:
        peer = await stage.peer()
        await api_versions(peer)
        peer.connection.write([size])
        assert await peer.hangs_up()

    play(conversation, max_request_bytes=64 * 1024)


def test_answers_come_in_the_order_of_requests_though_a_later_one_is_done_first() -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        peer = await stage.peer()
        peer.produce("orders", batch_of(b"a"))  # opens the producer
        assert (await peer.produced()).base_offset == 0
        topic.held_back = True
        peer.produce("orders", batch_of(b"b", b"c"))
        peer.ask(ApiKey.API_VERSIONS, 0, m.ApiVersionsRequest())
        peer.produce("orders", batch_of(b"d"))
        await stage.later(1)
        (producer,) = topic.producers
        assert [outgoing.count for outgoing, _ in producer.waiting] == [2, 1]  # both are under way
        assert not peer.frames
        producer.store()
        assert (await peer.produced()).base_offset == 1
        assert (await peer.hear()).error_code == Code.NONE
        assert (await peer.produced()).base_offset == 3

    play(conversation)


def test_a_request_waits_for_a_fetch_that_waits() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        peer = await stage.peer()
        peer.fetch(("orders", 0, 0), max_wait_ms=5_000)
        peer.ask(ApiKey.API_VERSIONS, 0, m.ApiVersionsRequest())
        began = stage.runtime.clock.monotonic()
        assert (await peer.fetched()).error_code == Code.NONE
        assert (await peer.hear()).error_code == Code.NONE
        assert stage.runtime.clock.monotonic() - began >= 5

    play(conversation)


def test_a_flood_slows_its_own_connection_and_is_answered_in_full() -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        topic.held_back = True
        peer, other = await stage.peer(), await stage.peer()
        for _ in range(50):
            peer.produce("orders", batch_of(b"x" * 1000))
        await stage.later(1)
        (producer,) = topic.producers
        assert 0 < len(producer.waiting) <= 9  # the first waited for the producer
        assert (await api_versions(other)).error_code == Code.NONE
        topic.held_back = False
        producer.store()
        assert [(await peer.produced()).base_offset for _ in range(50)] == list(range(50))

    play(conversation, max_requests=8)


def test_a_flood_of_bytes_is_held_back_by_its_bytes() -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        peer = await stage.peer()
        peer.produce("orders", batch_of(b"first"))
        await peer.produced()
        topic.held_back = True
        for _ in range(20):
            peer.produce("orders", batch_of(b"x" * 4000))
        await stage.later(1)
        (producer,) = topic.producers
        assert 0 < len(producer.waiting) <= 3
        topic.held_back = False
        producer.store()
        assert [(await peer.produced()).base_offset for _ in range(20)] == list(range(1, 21))

    play(conversation, max_pending_bytes=10_000)


def test_a_producer_that_shall_rest_is_not_read_until_it_may_go_on() -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        peer = await stage.peer()
        peer.produce("orders", batch_of(b"a"))
        await peer.produced()
        (producer,) = topic.producers
        producer.rested.clear()
        peer.produce("orders", batch_of(b"b"))
        await peer.produced()
        peer.produce("orders", batch_of(b"c"))
        await stage.later(1)
        assert topic.end_offset == 2
        producer.rested.set()
        assert (await peer.produced()).base_offset == 2

    play(conversation)


def test_a_client_that_says_nothing_for_long_is_let_go() -> None:
    async def conversation(stage: Stage) -> None:
        peer = await stage.peer()
        await api_versions(peer)
        await stage.later(90)
        assert len(stage.server.sessions) == 1
        await stage.later(20)
        assert await peer.hangs_up()
        assert stage.server.sessions == []

    play(conversation, idle_timeout_s=100)


def test_a_connection_over_the_limit_is_ended() -> None:
    async def conversation(stage: Stage) -> None:
        peers = [await stage.peer() for _ in range(2)]
        for peer in peers:
            await api_versions(peer)
        assert await (await stage.peer()).hangs_up()
        assert (await api_versions(peers[0])).error_code == Code.NONE

    play(conversation, settings=KafkaSettings(max_connections=2))


def test_a_bug_in_a_handler_is_answered_where_the_answer_has_a_place_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def conversation(stage: Stage) -> None:
        async def broken(*_: object) -> None:
            raise ZeroDivisionError

        handler = HANDLERS[ApiKey.SASL_HANDSHAKE]
        monkeypatch.setitem(HANDLERS, ApiKey.SASL_HANDSHAKE, handler._replace(run=broken))
        peer = await stage.peer()
        answer = await peer.call(ApiKey.SASL_HANDSHAKE, 1, m.SaslHandshakeRequest(mechanism="PLAIN"))
        assert answer.error_code == Code.UNKNOWN_SERVER_ERROR
        assert (await api_versions(peer)).error_code == Code.NONE

    play(conversation)


def test_a_request_that_storage_fails_ends_the_connection_if_its_answer_cannot_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def conversation(stage: Stage) -> None:
        async def broken(*_: object) -> None:
            raise ConnectionLostError("a bookie is gone")

        handler = HANDLERS[ApiKey.METADATA]
        monkeypatch.setitem(HANDLERS, ApiKey.METADATA, handler._replace(run=broken))
        peer = await stage.peer()
        peer.ask(ApiKey.METADATA, 9, m.MetadataRequest(topics=None))
        peer.ask(ApiKey.API_VERSIONS, 0, m.ApiVersionsRequest())
        assert await peer.hangs_up()

    play(conversation)


# --- credentials ----------------------------------------------------------------------------------------


def secured(stage: Stage, **lives_ms: int | None) -> None:
    """Tokens that are good for so long."""
    now = stage.runtime.clock.wall_ms()
    stage.broker.identities = {
        name.encode(): Identity(name, None if life is None else now + life) for name, life in lives_ms.items()
    }


async def authenticate(peer: Peer, password: bytes, version: int = 1) -> Any:
    await peer.call(ApiKey.SASL_HANDSHAKE, 1, m.SaslHandshakeRequest(mechanism="PLAIN"))
    return await peer.call(ApiKey.SASL_AUTHENTICATE, version, plain(password))


@pytest.mark.parametrize("version", range(3))
def test_a_token_is_the_password_and_names_the_role(version: int) -> None:
    async def conversation(stage: Stage) -> None:
        secured(stage, ann=None)
        peer = await stage.peer()
        assert (await api_versions(peer)).error_code == Code.NONE
        answer = await authenticate(peer, b"ann", version)
        assert (answer.error_code, answer.session_lifetime_ms) == (Code.NONE, 0)
        (session,) = stage.server.sessions
        assert session.role == "ann"
        assert (await peer.metadata()).topics == []

    play(conversation)


def test_a_wrong_token_is_told_so_and_the_connection_ends() -> None:
    async def conversation(stage: Stage) -> None:
        secured(stage, ann=None)
        peer = await stage.peer()
        answer = await authenticate(peer, b"eve")
        assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED
        assert answer.error_message
        assert await peer.hangs_up()

    play(conversation)


def test_the_oldest_form_of_sasl_sends_the_token_without_a_header() -> None:
    async def conversation(stage: Stage) -> None:
        secured(stage, ann=None)
        peer = await stage.peer()
        await peer.call(ApiKey.SASL_HANDSHAKE, 0, m.SaslHandshakeRequest(mechanism="PLAIN"))
        peer.say(b"\0me\0ann")
        assert await peer.frame() == b""
        assert (await peer.metadata()).topics == []
        stranger = await stage.peer()
        await stranger.call(ApiKey.SASL_HANDSHAKE, 0, m.SaslHandshakeRequest(mechanism="PLAIN"))
        stranger.say(b"\0me\0eve")
        assert await stranger.hangs_up()

    play(conversation)


def test_nothing_is_served_to_somebody_who_has_not_said_who_they_are() -> None:
    async def conversation(stage: Stage) -> None:
        secured(stage, ann=None)
        peer = await stage.peer()
        peer.ask(ApiKey.METADATA, 9, m.MetadataRequest(topics=None))
        assert await peer.hangs_up()
        silent = await stage.peer()
        await stage.later(30)
        assert await silent.hangs_up()

    play(conversation)


def test_an_unknown_mechanism_is_answered_with_those_that_are_known() -> None:
    async def conversation(stage: Stage) -> None:
        secured(stage, ann=None)
        peer = await stage.peer()
        answer = await peer.call(ApiKey.SASL_HANDSHAKE, 1, m.SaslHandshakeRequest(mechanism="GSSAPI"))
        assert (answer.error_code, answer.mechanisms) == (Code.UNSUPPORTED_SASL_MECHANISM, ["PLAIN"])
        answer = await peer.call(ApiKey.SASL_AUTHENTICATE, 1, plain(b"ann"))
        assert answer.error_code == Code.ILLEGAL_SASL_STATE

    play(conversation)


def test_a_token_that_ends_must_be_renewed_on_the_same_connection_by_the_same_role() -> None:
    async def conversation(stage: Stage) -> None:
        secured(stage, ann=10_000)
        peer = await stage.peer()
        answer = await authenticate(peer, b"ann")
        assert 9_000 < answer.session_lifetime_ms <= 10_000
        await stage.later(5)
        secured(stage, ann=10_000, bob=None)
        assert (await authenticate(peer, b"ann")).error_code == Code.NONE
        await stage.later(7)
        assert (await peer.metadata()).topics == []
        assert (await authenticate(peer, b"bob")).error_code == Code.SASL_AUTHENTICATION_FAILED
        assert await peer.hangs_up()

    play(conversation)


def test_after_its_end_a_token_serves_no_more_requests() -> None:
    async def conversation(stage: Stage) -> None:
        secured(stage, ann=1_000)
        peer = await stage.peer()
        await authenticate(peer, b"ann")
        await stage.later(2)
        peer.ask(ApiKey.METADATA, 9, m.MetadataRequest(topics=None))
        assert await peer.hangs_up()

    play(conversation)
