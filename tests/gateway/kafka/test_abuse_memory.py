"""Abuse of memory over sockets: halves of large requests, bombs that are small until they are opened, small
requests with large answers. What they cost is bounded, and others are served meanwhile."""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from weir.gateway.kafka.errors import Code
from weir.testing.codecs.record_samples import compress
from weir.testing.kafka.node import KafkaNode
from weir.testing.kafka.stage import batch_of, values_of
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.primitives import uvarint
from weir.wire.kafka.record_batch import NO_STAMP, Compression, sealed

KIB = 1024
MIB = 1024 * KIB
PATIENCE_S = 120.0


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Callable[..., KafkaNode]]:
    """Starts a broker for one test alone."""
    nodes: list[KafkaNode] = []

    def start(*settings: str, **more: Any) -> KafkaNode:
        nodes.append(KafkaNode(tmp_path / "node", *settings, **more).start())
        return nodes[0]

    yield start
    for node in nodes:
        node.stop()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNode]:
    node = KafkaNode(tmp_path_factory.mktemp("node") / "data").start()
    yield node
    node.stop()


@pytest.fixture(autouse=True)
def no_failures(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    for when in ("setup", "call"):
        assert [r.getMessage() for r in caplog.get_records(when) if r.levelno >= logging.ERROR or r.exc_info] == []


def memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- halves of large requests -----------------------------------------------------------------------------------


class Halves:
    """Connections of which each sends most of a request of 64 MiB, as fast as it is read, and then no more."""

    def __init__(self, address: tuple[str, int], count: int) -> None:
        self._sockets = {self._connect(address): 60 * MIB for _ in range(count)}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.most_bytes = 0

    @staticmethod
    def _connect(address: tuple[str, int]) -> socket.socket:
        made = socket.create_connection(address, timeout=PATIENCE_S)
        made.sendall((64 * MIB).to_bytes(4, "big"))
        made.setblocking(False)
        return made

    def _send(self) -> None:
        some = bytes(256 * KIB)
        while not self._stop.wait(0.01):
            self.most_bytes = max(self.most_bytes, memory_bytes())
            for each, left in list(self._sockets.items()):
                with suppress(BlockingIOError):
                    try:
                        if left:
                            self._sockets[each] = left - each.send(some[:left])
                    except OSError as gone:
                        if isinstance(gone, BlockingIOError):
                            raise
                        del self._sockets[each]
                        each.close()

    def __enter__(self) -> "Halves":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for each in self._sockets:
            each.close()


@pytest.mark.slow
def test_most_of_many_large_requests_costs_the_room_for_one_and_holds_nobody_up(
    start_node: Callable[..., KafkaNode], topic: str
) -> None:
    changes = {"max_received_bytes": 64 * MIB, "receive_patience_s": 2.0, "sweep_interval_s": 0.2}
    node = start_node("limits.request_bytes=64MiB", changes=changes)

    async def produce_and_fetch(value: bytes, times: int) -> None:
        peer = await node.peer()
        await peer.metadata(topic)
        for _ in range(times):
            peer.produce(topic, batch_of(value))
            stored = await peer.produced()
            assert stored.error_code == Code.NONE
            peer.fetch((topic, 0, stored.base_offset), max_wait_ms=0)
            assert values_of(await peer.fetched()) == [(stored.base_offset, value)]
        peer.connection.close()

    before = memory_bytes()
    with Halves(node.address, 20) as halves:
        node.call(lambda: produce_and_fetch(b"small", 10))
        node.call(lambda: produce_and_fetch(bytes(4500 * KIB), 1))  # waits until one of them was silent
    assert halves.most_bytes - before < 200 * MIB  # of 1200 that they want to send


# --- bombs ------------------------------------------------------------------------------------------------------


@cache
def bomb(kind: Compression) -> bytes:
    """A batch of a few hundred kilobytes at the most, and of 160 MiB when it is opened."""
    return sealed(
        compress(kind, bytes(160 * MIB)),
        base_offset=0,
        attributes=kind,
        last_offset_delta=0,
        times=(0, 0),
        stamp=NO_STAMP,
        records=1,
    )


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_batch_that_is_huge_when_it_is_opened_is_refused_at_the_cost_of_what_a_batch_may_be(
    node: KafkaNode, topic: str, policy: str
) -> None:
    """It is opened to look for delays, or keys."""
    config = m.CreateTopicsRequest.CreatableTopicConfig(name="cleanup.policy", value=policy)
    creation = m.CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=1, replication_factor=1, configs=[config]
    )
    bombs = [bomb(kind) for kind in (Compression.GZIP, Compression.LZ4, Compression.ZSTD)]

    async def send() -> list[int]:
        peer = await node.peer()
        await peer.call(ApiKey.CREATE_TOPICS, 5, m.CreateTopicsRequest(topics=[creation], timeout_ms=30_000))
        for batch in bombs:
            peer.produce(topic, batch)
        codes = [(await peer.produced()).error_code for _ in bombs]
        peer.produce(topic, batch_of(b"x") if policy == "delete" else b"")
        await peer.produced()
        peer.connection.close()
        return codes

    before = memory_bytes()
    assert node.call(send) == [Code.INVALID_RECORD] * 3
    assert memory_bytes() - before < 200 * MIB


# --- claims -----------------------------------------------------------------------------------------------------

HEADER = b"\0\x03\0\x09\0\0\0\1\xff\xff"  # of a metadata request


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(HEADER + b"\0" + b"\xff\xff\xff\xff\x07" + bytes(20), id="two billion topics in 20 bytes"),
        pytest.param(HEADER + b"\0" + uvarint(2_000_001) + b"\1\0" * 2_000_000, id="two million topics"),
        pytest.param(HEADER + uvarint(1_000_000) + b"\x63\0" * 1_000_000, id="a million tags in a header"),
        pytest.param(HEADER + b"\0\1\0\0\0" + uvarint(1_000_000) + b"\x63\0" * 1_000_000, id="a million tags"),
        pytest.param(HEADER + b"\1\x63\xff\xff\xff\xff\x0f" + bytes(20), id="a tag of 4 GiB"),
    ],
)
def test_a_request_that_claims_too_much_ends_its_connection_and_costs_little(
    node: KafkaNode, frame: bytes
) -> None:
    async def say() -> None:
        peer, other = await node.peer(), await node.peer()
        peer.say(frame)
        assert await peer.hangs_up()
        assert (await other.call(ApiKey.API_VERSIONS, 0, m.ApiVersionsRequest())).error_code == Code.NONE
        other.connection.close()

    before = memory_bytes()
    node.call(say)
    assert memory_bytes() - before < 100 * MIB


# --- small requests with large answers --------------------------------------------------------------------------


@pytest.mark.slow
def test_answers_that_are_much_larger_than_their_requests_wait_for_their_reader(
    start_node: Callable[..., KafkaNode], topic: str
) -> None:
    node = start_node()
    creation = m.CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=2000, replication_factor=1)
    named = m.MetadataRequest.MetadataRequestTopic(name=topic)

    async def flood() -> int:
        peer = await node.peer()
        await peer.call(ApiKey.CREATE_TOPICS, 5, m.CreateTopicsRequest(topics=[creation], timeout_ms=60_000))
        answer = await peer.call(ApiKey.METADATA, 9, m.MetadataRequest(topics=[named] * 20_000))
        assert [len(each.partitions) for each in answer.topics] == [2000]  # once, however often it is named
        transport = peer.connection._transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KIB)
        transport.pause_reading()
        for _ in range(1000):
            peer.ask(ApiKey.METADATA, 9, m.MetadataRequest(topics=[named]))
        async with asyncio.timeout(PATIENCE_S):
            while not any(session.outbox.stalled_at is not None for session in node.server.sessions):
                await asyncio.sleep(0.01)
        served = node.server.metrics.requests[ApiKey.METADATA]
        peer.connection.abort()
        return served

    before = memory_bytes()
    flooding = node.begin(flood)

    async def calm() -> None:
        peer = await node.peer()
        for _ in range(20):
            versions = await peer.call(ApiKey.API_VERSIONS, 0, m.ApiVersionsRequest())
            assert versions.error_code == Code.NONE
        peer.connection.close()

    node.call(calm)
    assert flooding.result(PATIENCE_S) < 500
    assert memory_bytes() - before < 200 * MIB


def test_a_group_that_is_named_again_and_again_is_told_of_once(node: KafkaNode) -> None:
    async def ask() -> list[str]:
        peer = await node.peer()
        groups = [
            m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("a", "b", "a")
        ]
        answer = await peer.call(ApiKey.OFFSET_FETCH, 8, m.OffsetFetchRequest(groups=groups * 10_000))
        peer.connection.close()
        return [group.group_id for group in answer.groups]

    assert node.call(ask) == ["a", "b"]
