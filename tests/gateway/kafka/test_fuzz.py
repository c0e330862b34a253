"""Requests of every API and version, odd, broken and miscounted, over sockets: each is answered in the protocol,
or its connection ends; nothing is logged as a failure, nothing stays behind, and others are served as before."""

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from weir.gateway.kafka.api_table import HANDLERS, load_handlers
from weir.model.errors import NetworkError
from weir.testing.codecs.kafka_fuzz import ODD_NAMES, TOPIC, Fuzz
from weir.testing.kafka.node import KafkaNode
from weir.testing.kafka.stage import Peer, batch_of
from weir.testing.kinds import rounds
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import API, ApiKey
from weir.wire.kafka.codec import decode_response
from weir.wire.kafka.frames import decode_response_header

load_handlers()
EVERY_API = pytest.mark.parametrize("key", sorted(HANDLERS), ids=lambda key: API[ApiKey(key)].name)
#: Rounds of each kind (whole, broken, miscounted) for each version.
ROUNDS = rounds(7)
#: Requests that may rightly wait for something for as long as they say, and broken ones may say anything.
WAITING = (ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
PATIENCE_S = 60.0
PING = 0x7EED
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNode]:
    settings = ("groups.initial_delay=0.001", "groups.min_session=0.1", "groups.max_session=60")
    node = KafkaNode(tmp_path_factory.mktemp("node") / "data", *settings).start()
    yield node
    node.stop()


@pytest.fixture
def topic_id(node: KafkaNode) -> bytes:
    """Of a topic with records; requests before may have deleted it."""

    async def ask() -> bytes:
        peer = await node.peer()
        await prepare(peer)
        answer = await peer.metadata(TOPIC, version=12)
        peer.connection.close()
        return bytes(answer.topics[0].topic_id)

    return bytes(node.call(ask))


async def prepare(peer: Peer) -> None:
    wanted = m.CreateTopicsRequest.CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=1)
    await peer.call(ApiKey.CREATE_TOPICS, 5, m.CreateTopicsRequest(topics=[wanted], timeout_ms=60_000))
    for index in range(2):
        peer.produce(TOPIC, batch_of(b"a", b"b", b"c"), index=index)
        await peer.produced()


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        f"{record.getMessage()}: {record.exc_info}"
        for record in caplog.records
        if record.levelno >= logging.ERROR or record.exc_info
    ]


def memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Tormentor:
    """Sends one frame after the other, on a new connection where the last one ended."""

    def __init__(self, node: KafkaNode, fuzz: Fuzz) -> None:
        self._node = node
        self._fuzz = fuzz
        self._peer: Peer | None = None
        self.answered = 0
        self.closed = 0

    async def say(self, key: int, version: int, frame: bytes, *, may_wait: bool = False) -> None:
        """The frame, and a request that all brokers know behind it: that one is answered, or all has ended."""
        if self._peer is None:
            self._peer = await self._node.peer()
        peer = self._peer
        peer.say(frame)
        peer.say(ApiKey.API_VERSIONS.to_bytes(2, "big") + b"\0\0" + PING.to_bytes(4, "big") + b"\xff\xff")
        try:
            async with asyncio.timeout(0.03 if may_wait else PATIENCE_S):
                answers = await self._hear(peer, key, version, frame)
        except TimeoutError:
            assert may_wait, f"{API[ApiKey(key)].name} {version} is not answered: {frame.hex()}"
            self.hang_up()
            return
        if answers is None:
            self.closed += 1
            self.hang_up()
        else:
            self.answered += answers

    async def _hear(self, peer: Peer, key: int, version: int, frame: bytes) -> int | None:
        """How many answers came before the last; None if the connection ended."""
        count = 0
        while True:
            try:
                body = await peer.frame()
            except NetworkError:
                return None
            if body is None:
                return None
            if body[:4] == PING.to_bytes(4, "big"):
                return count
            count += 1
            assert count == 1, "one request has one answer"
            assert body[:4] == frame[4:8]
            served = HANDLERS[key].first <= version <= HANDLERS[key].last
            asked = version if served or key != ApiKey.API_VERSIONS else 0
            _, rest = decode_response_header(key, asked, body)
            answer: Any = decode_response(key, asked, rest)
            if key == ApiKey.JOIN_GROUP and answer.member_id:
                self._fuzz.members.append(answer.member_id)

    def hang_up(self) -> None:
        if self._peer is not None:
            self._peer.connection.abort()
            self._peer = None


@pytest.mark.slow
@EVERY_API
def test_every_version_of_a_request_is_answered_or_ends_its_connection(
    node: KafkaNode, topic_id: bytes, caplog: pytest.LogCaptureFixture, key: int
) -> None:
    before = memory_bytes()

    async def torment() -> Tormentor:
        fuzz = Fuzz(Random(f"fuzz {API[ApiKey(key)].name}"), topic_id)
        tormentor = Tormentor(node, fuzz)
        number = PING
        for version in range(HANDLERS[key].first, HANDLERS[key].last + 1):
            for _ in range(ROUNDS):
                for make in (fuzz.request, fuzz.broken, fuzz.miscounted):
                    number += 1
                    frame = make(key, version, number)
                    await tormentor.say(key, version, frame, may_wait=key in WAITING)
        tormentor.hang_up()
        return tormentor

    tormentor = node.call(torment, timeout_s=300)
    assert failures(caplog) == []
    assert tormentor.answered > 0
    assert memory_bytes() - before < 200 * MIB
    nothing_is_left(node)


@pytest.mark.slow
@EVERY_API
def test_a_version_that_is_not_served_ends_the_connection(
    node: KafkaNode, caplog: pytest.LogCaptureFixture, key: int
) -> None:
    handler = HANDLERS[key]

    async def torment() -> Tormentor:
        fuzz = Fuzz(Random(f"versions {key}"))
        tormentor = Tormentor(node, fuzz)
        body = fuzz.request(key, handler.last, PING + 1)[4:]
        for version in (-1, -(2**15), handler.first - 1, handler.last + 1, 99, 2**15 - 1):
            frame = key.to_bytes(2, "big") + version.to_bytes(2, "big", signed=True) + body
            await tormentor.say(key, version, frame)
        tormentor.hang_up()
        return tormentor

    tormentor = node.call(torment)
    above = 3 if key == ApiKey.API_VERSIONS else 0  # the one request whose client cannot know better
    assert (tormentor.answered, tormentor.closed) == (above, 6 - above)
    assert failures(caplog) == []


def test_keys_that_nobody_has_end_the_connection(node: KafkaNode, caplog: pytest.LogCaptureFixture) -> None:
    async def torment() -> None:
        for key in [key for key in (-(2**15), -1, *range(100), 2**15 - 1) if key not in HANDLERS]:
            for version in (-1, 0, 1, 12):
                peer = await node.peer()
                numbers = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True)
                peer.say(numbers + b"\0\0\0\1\xff\xff\0\0\0\0")
                assert await peer.hangs_up()

    node.call(torment)
    assert failures(caplog) == []


def test_bytes_that_are_not_even_a_header(node: KafkaNode, caplog: pytest.LogCaptureFixture) -> None:
    async def torment() -> None:
        dice = Random("noise")
        for size in (0, 1, 2, 7, 8, 9, 10, 11, 30, 1_000):
            for _ in range(5):
                peer = await node.peer()
                peer.say(b"\xee" + dice.randbytes(size - 1) if size else b"")
                assert await peer.hangs_up()

    node.call(torment)
    assert failures(caplog) == []


def nothing_is_left(node: KafkaNode) -> None:
    """Sessions end with their connections, and what was read or kept for them with them."""

    async def look() -> None:
        async with asyncio.timeout(PATIENCE_S):
            while node.server.sessions:
                await asyncio.sleep(0.005)
        assert len(node.server._fetch_sessions) == 0
        assert node.server.unread_budget.used_bytes == 0

    node.call(look)


def test_the_broker_is_well_after_all_that(node: KafkaNode, client: Any, topic: str) -> None:
    for name in (topic, "fuzz-well"):
        values = [b"%d" % at for at in range(20)]
        sent = client.send(node.bootstrap, name, values)
        start = min(offset for _, offset in sent)
        assert [value for _, _, value in client.read(node.bootstrap, name, {sent[0][0]: start}, 20)] == values


def test_names_of_topics_that_were_made_are_names_that_kafka_allows(node: KafkaNode, topic_id: bytes) -> None:
    listed = AdminClient({"bootstrap.servers": node.bootstrap}).list_topics(timeout=PATIENCE_S)
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert TOPIC in listed.topics
    for name in listed.topics:
        assert set(name) <= allowed
        assert len(name) <= 249
        assert name not in (".", "..")


async def commit(peer: Peer, group: str) -> None:
    """A position of a group of that name."""
    part = m.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    named = m.OffsetCommitRequest.OffsetCommitRequestTopic(name=TOPIC, partitions=[part])
    await peer.call(ApiKey.OFFSET_COMMIT, 7, m.OffsetCommitRequest(group_id=group, topics=[named]))


@pytest.mark.slow
def test_odd_names_for_everything_that_has_one(node: KafkaNode, caplog: pytest.LogCaptureFixture) -> None:
    """Refused, or a name like any other; nothing is written outside of the data folder."""
    folder = node.folder.parent
    beside = sorted(folder.parent.iterdir())

    async def use(peer: Peer, name: str) -> None:
        wanted = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        await peer.call(ApiKey.CREATE_TOPICS, 5, m.CreateTopicsRequest(topics=[wanted], timeout_ms=60_000))
        await peer.metadata(name)
        peer.produce(name, batch_of(b"x"))
        await peer.produced()
        peer.fetch((name, 0, 0), max_wait_ms=0)
        await peer.hear()
        await commit(peer, name)
        await peer.call(
            ApiKey.INIT_PRODUCER_ID, 4, m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000)
        )
        await peer.call(ApiKey.FIND_COORDINATOR, 3, m.FindCoordinatorRequest(key=name, key_type=0))
        await peer.call(ApiKey.DELETE_GROUPS, 2, m.DeleteGroupsRequest(groups_names=[name]))

    async def all_of_them() -> None:
        peer = await node.peer()
        for name in ODD_NAMES:
            await use(peer, name)
        peer.connection.close()

    node.call(all_of_them)
    assert failures(caplog) == []
    assert sorted(folder.parent.iterdir()) == beside
    assert list(folder.iterdir()) == [node.folder]
