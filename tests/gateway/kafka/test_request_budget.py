"""Requests that come in halves: what all connections hold of them is bounded, and they hold nobody up for long."""

import logging
from typing import Any

import pytest

from weir.broker.api.security import Identity
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.settings import KafkaSettings
from weir.testing.kafka.stage import Peer, Stage, batch_of, play
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey

MIB = 1024 * 1024
#: Room for one large request at a time.
TIGHT = KafkaSettings(max_received_bytes=8 * MIB)
HALF = (4 * MIB).to_bytes(4, "big") + bytes(MIB)


def produce_large(peer: Peer) -> None:
    peer.produce("orders", batch_of(bytes(2 * MIB)))


async def api_versions(peer: Peer) -> Any:
    return await peer.call(ApiKey.API_VERSIONS, 0, m.ApiVersionsRequest())


def test_a_half_of_a_request_that_others_wait_behind_is_ended_after_a_while() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        peer, half = await stage.peer(), await stage.peer()
        half.connection.write([HALF])
        await stage.later(1)
        produce_large(peer)
        await stage.later(1)
        assert (stage.server._request_budget.waiting, stage.server._request_budget.used_bytes) == (1, 4 * MIB)
        assert (await api_versions(await stage.peer())).error_code == Code.NONE  # small ones do not wait
        assert (await peer.produced()).base_offset == 0
        assert await half.hangs_up()
        assert (stage.server._request_budget.waiting, stage.server._request_budget.used_bytes) == (0, 0)

    play(conversation, settings=TIGHT)


def test_requests_that_come_in_pieces_are_read_one_after_the_other_and_all_are_served() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        peers = [await stage.peer() for _ in range(5)]
        most = 0
        for peer in peers:
            produce_large(peer)
        offsets = []
        for peer in peers:
            most = max(most, stage.server._request_budget.used_bytes)
            offsets.append((await peer.produced()).base_offset)
        assert sorted(offsets) == list(range(5))
        assert 0 < most < 5 * MIB

    play(conversation, settings=TIGHT)


def test_half_of_a_request_is_not_waited_for_for_ever() -> None:
    async def conversation(stage: Stage) -> None:
        for half in (b"\0", b"\0\0\0\x50\0\x12\0\0", HALF):
            peer = await stage.peer()
            await api_versions(peer)
            peer.connection.write([half])
            await stage.later(30)
            assert len(stage.server.sessions) == 1
            await stage.later(40)
            assert await peer.hangs_up()
            assert stage.server.sessions == []

    play(conversation)


def test_a_stranger_who_drips_is_not_waited_for_either() -> None:
    async def conversation(stage: Stage) -> None:
        stage.broker.identities = {b"ann": Identity("ann", None)}
        stranger = await stage.peer()
        for byte in b"\0\0\x10\0" + bytes(20):
            stranger.connection.write([bytes([byte])])
            await stage.later(1)
        assert await stranger.hangs_up()

    play(conversation)


@pytest.mark.parametrize(
    ("first", "name"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2 (gRPC, RocketMQ 5)"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS"),
    ],
    ids=["http2", "tls"],
)
def test_another_protocol_is_named_in_the_log(first: bytes, name: str, caplog: pytest.LogCaptureFixture) -> None:
    async def conversation(stage: Stage) -> None:
        stranger = await stage.peer()
        stranger.connection.write([first])
        assert await stranger.hangs_up()
        assert stage.server.metrics.refused == 1

    with caplog.at_level(logging.WARNING):
        play(conversation)
    (said,) = [record.getMessage() for record in caplog.records if record.name.startswith("weir.gateway.kafka")]
    assert f"the client uses {name}, and this port (listeners.kafka) serves the Kafka protocol" in said
