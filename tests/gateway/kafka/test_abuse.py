"""Abuse over sockets: frames that lie, floods of requests, connections, groups, members, ids and sessions. What it
costs is bounded, and others are served meanwhile."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from weir.gateway.kafka.errors import Code
from weir.model.batch import Stamp
from weir.model.errors import NetworkError
from weir.testing.kafka.node import KafkaNode
from weir.testing.kafka.stage import Peer, batch_of, values_of
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.frames import RequestHeader, request_frame

KIB = 1024
MIB = 1024 * KIB
PATIENCE_S = 120.0
Start = Callable[..., KafkaNode]


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Start]:
    """Starts brokers for one test alone."""
    nodes: list[KafkaNode] = []

    def start(*settings: str, **more: Any) -> KafkaNode:
        node = KafkaNode(tmp_path / f"node{len(nodes)}", "groups.initial_delay=0.001", *settings, **more)
        nodes.append(node.start())
        return node

    yield start
    for node in nodes:
        node.stop()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNode]:
    """One broker for the tests that leave nothing behind."""
    limits = {"max_request_bytes": 8 * MIB, "max_requests": 64, "max_pending_bytes": 4 * MIB}
    node = KafkaNode(tmp_path_factory.mktemp("node") / "data", limits=limits).start()
    yield node
    node.stop()


@pytest.fixture(autouse=True)
def no_failures(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    for when in ("setup", "call"):
        assert [r.getMessage() for r in caplog.get_records(when) if r.levelno >= logging.ERROR or r.exc_info] == []


def served(node: KafkaNode, topic: str) -> None:
    """A client that has nothing to do with the flood sends and reads back."""

    async def produce_and_fetch() -> None:
        peer = await node.peer()
        await peer.metadata(topic)
        for number in range(10):
            peer.produce(topic, batch_of(b"%d" % number))
            assert (await peer.produced()).error_code == Code.NONE
        peer.fetch((topic, 0, 0), max_wait_ms=0)
        assert [value for _, value in values_of(await peer.fetched())] == [b"%d" % at for at in range(10)]
        peer.connection.close()

    node.call(produce_and_fetch)


def memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def session_of(node: KafkaNode, peer: Peer) -> Any:
    """The broker's side of a connection."""
    here = "{}:{}".format(*peer.connection._transport.get_extra_info("sockname")[:2])
    async with asyncio.timeout(PATIENCE_S):
        while not (found := [each for each in node.server.sessions if each.peer == here]):
            await asyncio.sleep(0.001)
    return found[0]


def counted(session: Any) -> list[int]:
    """How many requests a session has under way, each time it takes one."""
    counts: list[int] = []
    take = session.load.acquire

    def take_and_count(size: int) -> None:
        take(size)
        counts.append(session.load.requests)

    session.load.acquire = take_and_count
    return counts


async def ended(node: KafkaNode, session: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while session in node.server.sessions:
            await asyncio.sleep(0.005)


# --- frames -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size",
    [8 * MIB + 1, 2**31 - 1, 2**31, 2**32 - 1, 0, 1, 7],
    ids=["over", "huge", "lowest", "minus one", "zero", "one", "no header"],
)
def test_a_size_that_cannot_be_ends_the_connection_before_anything_is_kept(node: KafkaNode, size: int) -> None:
    async def say() -> None:
        peer = await node.peer()
        peer.connection.write([size.to_bytes(4, "big") + bytes(64)])
        assert await peer.hangs_up()

    node.call(say)


def test_halves_of_requests_cost_what_was_sent_and_hold_nobody_up(node: KafkaNode, topic: str) -> None:
    """Many announce the largest request there is, and then say little."""
    frame = (8 * MIB).to_bytes(4, "big") + b"\0\0\0\x09\0\0\0\1\xff\xff\0"
    before = memory_bytes()
    halves = []
    for number in range(200):
        half = socket.create_connection(node.address, timeout=PATIENCE_S)
        half.sendall(frame[: 1 + number % len(frame)] if number % 2 else frame + bytes(10 * KIB))
        halves.append(half)
    for half in halves:  # and a little more
        half.sendall(b"\0")
    served(node, topic)
    assert memory_bytes() - before < 100 * MIB
    for half in halves:
        half.close()


def test_a_request_that_comes_byte_by_byte_is_answered(node: KafkaNode) -> None:
    async def drip() -> None:
        peer = await node.peer()
        request = m.ApiVersionsRequest(client_software_name="slow", client_software_version="1")
        frame = b"".join(request_frame(RequestHeader(ApiKey.API_VERSIONS, 3, 1, "slow"), request))
        for at in range(len(frame)):
            peer.connection.write([frame[at : at + 1]])
            await asyncio.sleep(0)
        peer.asked.append((ApiKey.API_VERSIONS, 3, 1))
        assert (await peer.hear()).error_code == Code.NONE
        peer.connection.close()

    node.call(drip)


# --- floods on one connection -----------------------------------------------------------------------------------


def produce(peer: Peer, topic: str) -> None:
    peer.produce(topic, batch_of(bytes(1000)))


def fetch(peer: Peer, topic: str) -> None:
    peer.fetch((topic, 0, 0), max_wait_ms=0)


def metadata(peer: Peer, topic: str) -> None:
    peer.ask(ApiKey.METADATA, 9, m.MetadataRequest(topics=None))


@pytest.mark.slow
@pytest.mark.parametrize("ask", [produce, fetch, metadata], ids=lambda ask: ask.__name__)
def test_thousands_of_requests_whose_answers_nobody_reads(
    start_node: Start, topic: str, ask: Callable[[Peer, str], None]
) -> None:
    node = start_node(changes={"sweep_interval_s": 0.05}, limits={"max_requests": 64, "stall_timeout_s": 0.5})
    before = memory_bytes()

    async def flood() -> list[int]:
        peer = await node.peer()
        await peer.metadata(topic)
        peer.produce(topic, batch_of(bytes(200 * KIB)))
        await peer.produced()
        session = await session_of(node, peer)
        counts = counted(session)
        peer.connection._transport.pause_reading()
        with suppress(TimeoutError, NetworkError):
            for _ in range(40):  # or until it is not read any more
                for _ in range(100):
                    ask(peer, topic)
                async with asyncio.timeout(1):
                    await peer.connection.drain()
        if ask is fetch:
            await ended(node, session)  # it does not read what it is sent
        peer.connection.abort()
        await ended(node, session)
        return counts

    flooding = node.begin(flood)
    served(node, f"{topic}-calm")
    assert 1 < max(flooding.result(PATIENCE_S)) <= 64
    assert node.server.unread_budget.used_bytes == 0
    assert memory_bytes() - before < 300 * MIB


@pytest.mark.slow
def test_answers_that_nobody_reads_stay_within_their_bound_and_who_reads_is_served(
    start_node: Start, topic: str
) -> None:
    """Fetches reserve before they read, and hold what they reserved until the socket has taken it."""
    limit = 8 * MIB
    node = start_node(
        changes={"sweep_interval_s": 0.05, "max_unread_bytes": limit, "receive_patience_s": 2},
        limits={"stall_timeout_s": 600},
    )
    budget = node.server.unread_budget
    most = [0]

    def unsent() -> int:
        return sum(session._connection.unsent_bytes for session in node.server.sessions)

    async def watch() -> None:
        while True:
            most[0] = max(most[0], unsent(), budget.used_bytes)
            await asyncio.sleep(0)

    async def slow() -> Peer:
        peer = await node.peer()
        await peer.metadata(topic)
        peer.connection._transport.pause_reading()
        for _ in range(20):
            peer.fetch((topic, 0, 0), max_wait_ms=60_000)
        return peer

    async def flood() -> None:
        calm = await node.peer()
        await calm.metadata(topic)
        for _ in range(20):
            calm.produce(topic, batch_of(bytes(MIB // 2)))
            await calm.produced()
        watching = asyncio.ensure_future(watch())
        peers = [await slow() for _ in range(40)]
        async with asyncio.timeout(PATIENCE_S):
            while not budget.waiting:
                await asyncio.sleep(0.001)
        # Others wait, so those who do not read are ended, and the one who reads has its turn.
        calm.fetch((topic, 0, 0), max_wait_ms=60_000)
        assert values_of(await calm.fetched())
        watching.cancel()
        for peer in [*peers, calm]:
            peer.connection.abort()

    node.call(flood)
    assert limit // 2 < most[0] <= limit + MIB  # and one batch


@pytest.mark.slow
def test_a_flood_of_tiny_produce_requests_is_answered_in_order(start_node: Start, topic: str) -> None:
    node = start_node("storage.cache_bytes=1000000", "broker.in_flight_bytes=100000", limits={"max_requests": 100})
    sends = 1500
    context = node.services.broker._context  # type: ignore[attr-defined]
    most = {"cache": 0, "in flight": 0}
    counts: list[list[int]] = []

    async def flood(number: int) -> list[int]:
        peer = await node.peer()
        await peer.metadata(f"{topic}-{number}")
        counts.append(counted(await session_of(node, peer)))
        batch = batch_of(b"x")

        async def read() -> list[int]:
            return [(await peer.produced()).base_offset for _ in range(sends)]

        for _ in range(sends):
            peer.produce(f"{topic}-{number}", batch)
        reading = asyncio.ensure_future(read())
        while not reading.done():
            most["cache"] = max(most["cache"], context.streams.tails.size_bytes)
            most["in flight"] = max(most["in flight"], context.publish_budget.used_bytes)
            await asyncio.sleep(0.001)
        peer.connection.close()
        return await reading

    async def all_at_once() -> list[list[int]]:
        return await asyncio.gather(*(flood(number) for number in range(3)))

    flooding = node.begin(all_at_once)
    served(node, f"{topic}-calm")
    assert flooding.result(PATIENCE_S) == [list(range(sends))] * 3
    assert 1 < max(map(max, counts)) <= 100
    assert most["cache"] <= 1_000_000 + 1000
    assert most["in flight"] <= 2 * 100_000


# --- floods of connections --------------------------------------------------------------------------------------


def test_more_connections_than_there_may_be_are_turned_away(start_node: Start, topic: str) -> None:
    node = start_node("limits.connections=20")

    async def early() -> Peer:
        peer = await node.peer()
        await peer.metadata(topic)
        return peer

    peer = node.call(early)
    strangers = []
    for _ in range(300):
        with suppress(OSError):
            strangers.append(socket.create_connection(node.address, timeout=PATIENCE_S))
    assert len(node.server.sessions) <= 20 + 64

    async def goes_on() -> None:
        peer.produce(topic, batch_of(b"still here"))
        assert (await peer.produced()).error_code == Code.NONE
        peer.connection.close()

    node.call(goes_on)
    for stranger in strangers:
        stranger.close()

    async def room_again() -> None:
        async with asyncio.timeout(PATIENCE_S):
            while node.server.sessions:
                await asyncio.sleep(0.005)

    node.call(room_again)
    served(node, f"{topic}-calm")


def test_many_connections_come_and_go(node: KafkaNode, topic: str) -> None:
    """Some that say nothing, half of a request, or hang up at once."""
    request = b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff"
    strangers = []
    for number in range(300):
        stranger = socket.create_connection(node.address, timeout=PATIENCE_S)
        if number % 3 == 1:
            stranger.sendall(request[: number % len(request)])
        if number % 3 == 2:
            stranger.sendall(request)
            stranger.close()
        else:
            strangers.append(stranger)
    served(node, topic)
    for stranger in strangers:
        stranger.close()


# --- floods of what a broker remembers --------------------------------------------------------------------------


def join(group: str, member: str = "", name: str = "range") -> m.JoinGroupRequest:
    return m.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id=member,
        protocol_type="consumer",
        protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=b"")],
    )


def test_a_flood_of_groups_is_refused_beyond_what_there_may_be(start_node: Start) -> None:
    node = start_node()
    groups = node.services.groups._groups
    groups.settings = replace(groups.settings, max_groups=20)

    async def flood() -> list[int]:
        peer = await node.peer()
        for number in range(100):
            peer.ask(ApiKey.JOIN_GROUP, 5, join(f"flood-{number}"))
        codes = [(await peer.hear()).error_code for _ in range(100)]
        known = await peer.call(ApiKey.JOIN_GROUP, 5, join("flood-0"))  # those that there are go on
        assert known.error_code == Code.MEMBER_ID_REQUIRED
        peer.connection.close()
        return codes

    codes = node.call(flood)
    assert codes[:20] == [Code.MEMBER_ID_REQUIRED] * 20
    assert set(codes[20:]).isdisjoint((Code.NONE, Code.MEMBER_ID_REQUIRED, Code.UNKNOWN_SERVER_ERROR))
    assert len(node.call(groups.all)) <= 20


def test_a_flood_of_members_is_refused_beyond_what_a_group_may_have(start_node: Start, topic: str) -> None:
    """Members that only asked for an id count, too."""
    node = start_node("groups.max_members=20")

    async def flood() -> list[int]:
        peer = await node.peer()
        for _ in range(100):
            peer.ask(ApiKey.JOIN_GROUP, 5, join("flood"))
        codes = [(await peer.hear()).error_code for _ in range(100)]
        other = await peer.call(ApiKey.JOIN_GROUP, 5, join("calm"))
        joined = await peer.call(ApiKey.JOIN_GROUP, 5, join("calm", other.member_id))
        assert joined.error_code == Code.NONE
        peer.connection.close()
        return codes

    codes = node.call(flood)
    assert codes == [Code.MEMBER_ID_REQUIRED] * 20 + [Code.GROUP_MAX_SIZE_REACHED] * 80


def test_a_client_with_the_longest_name_there_is_joins_a_group(node: KafkaNode) -> None:
    async def come() -> None:
        peer = await node.peer()
        name = "n" * 32_767
        for member in (None, ""):
            header = RequestHeader(ApiKey.JOIN_GROUP, 5 if member is None else 3, 1, name)
            peer.connection.write(request_frame(header, join(f"long-{member}")))
            peer.asked.append((ApiKey.JOIN_GROUP, header.api_version, 1))
            answer = await peer.hear()
            assert answer.error_code in (Code.NONE, Code.MEMBER_ID_REQUIRED)
            assert answer.member_id.startswith("nnn")
        peer.connection.close()

    node.call(come)


def test_a_flood_of_transactional_ids_is_refused_beyond_what_there_may_be(start_node: Start) -> None:
    node = start_node()
    transactions = node.services.transactions._transactions
    transactions.settings = replace(transactions.settings, most=20)

    async def flood() -> list[int]:
        peer = await node.peer()
        for number in range(100):
            request = m.InitProducerIdRequest(transactional_id=f"flood-{number}", transaction_timeout_ms=60_000)
            peer.ask(ApiKey.INIT_PRODUCER_ID, 4, request)
        codes = [(await peer.hear()).error_code for _ in range(100)]
        known = m.InitProducerIdRequest(transactional_id="flood-0", transaction_timeout_ms=60_000)
        answer = await peer.call(ApiKey.INIT_PRODUCER_ID, 4, known)
        assert (answer.error_code, answer.producer_epoch) == (Code.NONE, 1)
        peer.connection.close()
        return codes

    codes = node.call(flood)
    assert codes[:20] == [Code.NONE] * 20
    assert set(codes[20:]).isdisjoint((Code.NONE, Code.UNKNOWN_SERVER_ERROR))
    assert len(node.call(transactions.all)) == 20


def test_a_flood_of_fetch_sessions_gets_data_without_sessions(start_node: Start, topic: str) -> None:
    node = start_node(changes={"max_fetch_sessions": 10})

    async def flood() -> list[int]:
        peer = await node.peer()
        await peer.metadata(topic)
        peer.produce(topic, batch_of(b"x"))
        await peer.produced()
        ids = []
        for _ in range(50):
            peer.fetch((topic, 0, 0), session_epoch=0, max_wait_ms=0)
            answer = await peer.hear()
            ids.append(answer.session_id)
            assert values_of(answer.responses[0].partitions[0]) == [(0, b"x")]
            assert len(node.server._fetch_sessions) <= 10
        session = await session_of(node, peer)
        peer.connection.close()
        await ended(node, session)
        return ids

    ids = node.call(flood)
    assert all(ids[:9])
    assert not any(ids[10:])
    assert len(node.server._fetch_sessions) == 0


def test_a_flood_of_producer_ids_that_nobody_gave_out_holds_nobody_up(start_node: Start, topic: str) -> None:
    """Every batch under another id."""
    node = start_node()

    async def flood() -> None:
        peer = await node.peer()
        await peer.metadata(topic)
        for number in range(500):
            peer.produce(topic, batch_of(b"x", stamp=Stamp(1_000_000 + number, 0, 0)))
        assert [(await peer.produced()).error_code for _ in range(500)] == [Code.NONE] * 500
        peer.connection.close()

    node.call(flood)
    served(node, f"{topic}-calm")
