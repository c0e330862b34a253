"""No client holds the event loop by the number of objects that it has: ten thousand of each kind are created at
once by one connection, which then breaks. Turns of the loop are measured in CPU time, so that a busy machine makes
no difference."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from weir.model.topics import TopicName
from weir.runtime.real import real_runtime
from weir.server.broker_node import BrokerNode
from weir.server.config.load import load
from weir.testing.kafka.stage import batch_of
from weir.testing.loop_thread import LoopThread
from weir.testing.rocketmq.client import GrpcLink
from weir.wire.amqp.frames import METHOD
from weir.wire.amqp.methods import basic, decode_method, encode_method
from weir.wire.amqp.methods import channel as amqp_channel
from weir.wire.amqp.methods import connection as amqp_connection
from weir.wire.amqp.methods import queue as amqp_queue
from weir.wire.amqp.tables import NO_FIELDS
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.codec import decode_response
from weir.wire.kafka.frames import RequestHeader, decode_response_header, request_frame
from weir.wire.kafka.frames import splitter as kafka_splitter
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.frames import decode_frame, encode_command, encode_with_message, splitter
from weir.wire.pulsar.message import seal_message
from weir.wire.rocketmq import rocketmq_pb2 as rocketmq

MANY = 10_000
#: Members of one consumer group: the default of groups.max_members.
MEMBERS = 5_000
#: Topics, of which each is written to the disk. With 10,000 of them the turns are as short, and the test takes
#: more than a minute.
STORED = 1_000
#: Transactional ids.
TRANSACTIONS = MANY // 2
#: CPU time of one turn of the broker's loop, in seconds.
LONGEST_TURN_S = 0.1
TOPIC = "persistent://public/default/t"
_TIMEOUT_S = 300.0

Play = Callable[["Node"], Coroutine[Any, Any, None]]


class Node:
    """A whole Weir on a loop of its own; clients run on the loop of the test."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self._folder = folder
        self._settings = settings
        self.loop = LoopThread()
        self.loop.call(self._start)

    async def _start(self) -> None:
        listeners = ("pulsar", "kafka", "amqp", "rocketmq", "http")
        config = load(
            assignments=[
                f"data={self._folder}",
                "storage.low_water_bytes=0",
                "limits.keep_alive=600",  # the clients here do not answer pings
                *(f"listeners.{name}=127.0.0.1:0" for name in listeners),
                *self._settings,
            ]
        ).config
        self.up = BrokerNode(real_runtime(), config)
        await self.up.start()

    def stop(self) -> None:
        self.loop.call(self.up.close)
        self.loop.stop()

    def play(self, work: Play) -> None:
        """Run a client, and look at the turns that the broker had meanwhile."""
        self.loop.turns.longest_s = 0.0
        asyncio.run(asyncio.wait_for(work(self), _TIMEOUT_S))
        assert self.loop.turns.longest_s < LONGEST_TURN_S

    async def connect(self, protocol: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = self.up.addresses[protocol]
        return await asyncio.open_connection(address.host, address.port, limit=1 << 24)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds on the broker's loop."""

        async def look() -> bool:
            return holds()

        while not await asyncio.wrap_future(self.loop.begin(look)):
            await asyncio.sleep(0.05)

    async def gone(self) -> None:
        """All connections are let go of."""
        up = self.up
        servers = [up.pulsar_servers, up.kafka_servers, up.amqp_servers, up.rocketmq_servers]
        await self.until(lambda: not any(server.sessions for some in servers for server in some.values()))

    def consumers(self, subscription: str = "s") -> int:
        topic = self.up.composed.broker.served_now(TopicName.parse(TOPIC))
        assert topic is not None
        return len(topic.subscriptions[subscription].consumers)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("node"))
    yield node
    node.stop()


# --- Pulsar ------------------------------------------------------------------------------------------------------


class PulsarPeer:
    @classmethod
    async def open(cls, node: Node) -> "PulsarPeer":
        peer = cls()
        peer._reader, peer._writer = await node.connect("pulsar")
        peer._splitter = splitter(1 << 26)
        peer.say(api.CommandConnect(client_version="t", protocol_version=21, auth_method_name="none"))
        await peer.hear(1, api.CommandConnected)
        return peer

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    _splitter: Any

    def say(self, *commands: Any) -> None:
        self._writer.write(b"".join(encode_command(command) for command in commands))

    def send(self, count: int) -> None:
        """So many messages, by the producer 1."""
        for at in range(count):
            head = api.MessageMetadata(producer_name="p", sequence_id=at, publish_time=1)
            command = api.CommandSend(producer_id=1, sequence_id=at, num_messages=1)
            self._writer.writelines(encode_with_message(command, seal_message(head, b"x")))

    async def hear(self, count: int, *kinds: type) -> dict[str, int]:
        """Wait for so many commands of these kinds; how many came of each kind."""
        found: dict[str, int] = {}
        while sum(found.get(kind.__name__, 0) for kind in kinds) < count:
            data = await self._reader.read(1 << 16)
            assert data, "the connection has ended"
            for frame in self._splitter.feed(data):
                name = type(decode_frame(frame).command).__name__
                found[name] = found.get(name, 0) + 1
        return found

    def hang_up(self) -> None:
        self._writer.transport.abort()


def subscribes(count: int, kind: int, topics: int = 1) -> Iterable[Any]:
    return (
        api.CommandSubscribe(
            topic=TOPIC if topics == 1 else f"{TOPIC}-{at % topics}",
            subscription="s",
            subType=kind,
            consumer_id=at,
            request_id=at,
            consumer_name=f"c{at}",
            durable=False,
        )
        for at in range(count)
    )


_Subscribe = api.CommandSubscribe


@pytest.mark.slow
@pytest.mark.parametrize("kind", [_Subscribe.Shared, _Subscribe.Key_Shared, _Subscribe.Failover])
def test_consumers_of_one_subscription(node: Node, kind: int) -> None:
    async def play(node: Node) -> None:
        peer = await PulsarPeer.open(node)
        peer.say(*subscribes(MANY, kind))
        assert "CommandError" not in await peer.hear(MANY, api.CommandSuccess, api.CommandError)
        peer.say(*(api.CommandFlow(consumer_id=at, messagePermits=10) for at in range(MANY)), api.CommandPing())
        await peer.hear(1, api.CommandPong)
        peer.hang_up()
        await node.gone()

    node.play(play)


@pytest.mark.slow
def test_consumers_that_have_messages_leave_them_to_others(node: Node) -> None:
    """Each of them has a message that it has not acknowledged."""

    async def play(node: Node) -> None:
        topic = f"{TOPIC}-given"
        peer, other = await PulsarPeer.open(node), await PulsarPeer.open(node)
        commands = list(subscribes(MANY // 4, _Subscribe.Shared))
        for command in commands:
            command.topic = topic
        peer.say(*commands)
        await peer.hear(len(commands), api.CommandSuccess)
        one = _Subscribe(topic=topic, subscription="s", subType=_Subscribe.Shared, consumer_id=1, request_id=1)
        other.say(one)
        await other.hear(1, api.CommandSuccess)
        peer.say(*(api.CommandFlow(consumer_id=at, messagePermits=1) for at in range(len(commands))))

        other.say(api.CommandProducer(topic=topic, producer_id=1, request_id=2, producer_name="p"))
        await other.hear(1, api.CommandProducerSuccess)
        other.send(len(commands))
        await peer.hear(len(commands), api.CommandMessage)
        other.say(api.CommandFlow(consumer_id=1, messagePermits=MANY))
        peer.hang_up()
        await other.hear(len(commands), api.CommandMessage)
        other.hang_up()
        await node.gone()

    node.play(play)


@pytest.mark.slow
def test_producers_of_one_topic(node: Node) -> None:
    async def play(node: Node) -> None:
        peer = await PulsarPeer.open(node)
        peer.say(*(api.CommandProducer(topic=TOPIC, producer_id=at, request_id=at) for at in range(MANY)))
        assert "CommandError" not in await peer.hear(MANY, api.CommandProducerSuccess, api.CommandError)
        peer.hang_up()
        await node.gone()

    node.play(play)


@pytest.mark.slow
def test_new_topics(node: Node) -> None:
    async def play(node: Node) -> None:
        peer = await PulsarPeer.open(node)
        peer.say(*subscribes(STORED, _Subscribe.Shared, topics=STORED))
        assert "CommandError" not in await peer.hear(STORED, api.CommandSuccess, api.CommandError)
        peer.hang_up()
        await node.gone()

    node.play(play)


@pytest.mark.slow
def test_topic_watchers(node: Node) -> None:
    """A tenth of the limit of other objects; those over it are refused."""

    async def play(node: Node) -> None:
        peer = await PulsarPeer.open(node)
        peer.say(
            *(
                api.CommandWatchTopicList(
                    namespace="public/default", watcher_id=at, request_id=at, topics_pattern=f"{TOPIC}-watched.*"
                )
                for at in range(MANY)
            )
        )
        found = await peer.hear(MANY, api.CommandWatchTopicListSuccess, api.CommandError)
        assert found["CommandWatchTopicListSuccess"] == MANY // 10
        peer.say(api.CommandProducer(topic=f"{TOPIC}-watched", producer_id=0, request_id=0))
        await peer.hear(MANY // 10, api.CommandWatchTopicUpdate)
        peer.hang_up()
        await node.gone()

    node.play(play)


# --- AMQP --------------------------------------------------------------------------------------------------------


class AmqpPeer:
    @classmethod
    async def open(cls, node: Node) -> "AmqpPeer":
        peer = cls()
        peer._reader, peer._writer = await node.connect("amqp")
        peer._rest = bytearray()
        peer._writer.write(b"AMQP\0\0\x09\x01")
        await peer.hear(1, amqp_connection.Start)
        peer.say(0, amqp_connection.StartOk(NO_FIELDS, "PLAIN", b"\0guest\0guest", "en_US"))
        await peer.hear(1, amqp_connection.Tune)
        peer.say(0, amqp_connection.TuneOk(2047, 131_072, 0), amqp_connection.Open("/"))
        await peer.hear(1, amqp_connection.OpenOk)
        return peer

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    _rest: bytearray

    def say(self, channel: int, *methods: Any) -> None:
        self._writer.write(b"".join(bytes(encode_method(channel, method)) for method in methods))

    async def hear(self, count: int, kind: Any) -> None:
        """Wait for so many methods of this kind."""
        at, rest = 0, self._rest
        while count:
            while len(rest) - at < 8 or len(rest) - at < 8 + int.from_bytes(rest[at + 3 : at + 7], "big"):
                del rest[:at]
                at = 0
                data = await self._reader.read(1 << 16)
                assert data, "the connection has ended"
                rest += data
            size = int.from_bytes(rest[at + 3 : at + 7], "big")
            if rest[at] == METHOD:
                count -= isinstance(decode_method(rest[at + 7 : at + 7 + size]), kind)
            at += 8 + size
        del rest[:at]

    async def channels(self, count: int) -> None:
        for number in range(1, count + 1):
            self.say(number, amqp_channel.Open())
        await self.hear(count, amqp_channel.OpenOk)

    async def declare(self, name: str, *, exclusive: bool = False) -> None:
        self.say(1, amqp_queue.Declare(name, False, False, exclusive, False, False, NO_FIELDS))
        await self.hear(1, amqp_queue.DeclareOk)

    def hang_up(self) -> None:
        self._writer.transport.abort()


def consume(queue: str, tag: str) -> Any:
    return basic.Consume(queue, tag, False, False, False, False, NO_FIELDS)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 100])
def test_consumers_of_one_queue(node: Node, channels: int) -> None:
    async def play(node: Node) -> None:
        peer = await AmqpPeer.open(node)
        await peer.channels(channels)
        await peer.declare("crowded")
        for at in range(MANY):
            peer.say(1 + at % channels, consume("crowded", f"t{at}"))
        await peer.hear(MANY, basic.ConsumeOk)
        if channels > 1:
            peer.hang_up()
        else:
            peer.say(1, amqp_channel.Close(200, "", 0, 0))
            await peer.hear(1, amqp_channel.CloseOk)
            peer.hang_up()
        await node.gone()

    node.play(play)


@pytest.mark.slow
def test_channels_and_exclusive_queues(node: Node) -> None:
    async def play(node: Node) -> None:
        peer = await AmqpPeer.open(node)
        await peer.channels(2047)
        for at in range(MANY):
            declare = amqp_queue.Declare(f"own-{at}", False, False, True, False, False, NO_FIELDS)
            peer.say(1 + at % 2047, declare)
        await peer.hear(MANY, amqp_queue.DeclareOk)
        peer.hang_up()
        await node.gone()

    node.play(play)


# --- Kafka -------------------------------------------------------------------------------------------------------


class KafkaPeer:
    @classmethod
    async def open(cls, node: Node) -> "KafkaPeer":
        peer = cls()
        peer._reader, peer._writer = await node.connect("kafka")
        peer._splitter = kafka_splitter(1 << 27)
        return peer

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    _splitter: Any
    _said = 0

    def say(self, key: ApiKey, version: int, request: m.Message) -> None:
        self._said += 1
        header = RequestHeader(int(key), version, self._said, "c")
        self._writer.write(b"".join(bytes(part) for part in request_frame(header, request)))

    async def hear(self, count: int) -> None:
        while count > 0:
            data = await self._reader.read(1 << 16)
            assert data, "the connection has ended"
            count -= sum(1 for _ in self._splitter.feed(data))

    async def ask(self, key: ApiKey, version: int, request: m.Message) -> Any:
        """The answer, when no other is outstanding."""
        self.say(key, version, request)
        return await self.answer(key, version)

    async def answer(self, key: ApiKey, version: int) -> Any:
        frames: list[Any] = []
        while not frames:
            data = await self._reader.read(1 << 16)
            assert data, "the connection has ended"
            frames += self._splitter.feed(data)
        return decode_response(int(key), version, decode_response_header(int(key), version, frames[0])[1])

    def hang_up(self) -> None:
        self._writer.transport.abort()


_Join = m.JoinGroupRequest


def join_of(group: str, member_id: str = "") -> m.JoinGroupRequest:
    return _Join(
        group_id=group,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocols=[_Join.JoinGroupRequestProtocol(name="range", metadata=b"x" * 32)],
    )


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, MANY])
def test_new_members_of_groups(node: Node, groups: int) -> None:
    """Each asks for its id; a group has room for half of them."""

    async def play(node: Node) -> None:
        peer = await KafkaPeer.open(node)
        for at in range(MANY):
            peer.say(ApiKey.JOIN_GROUP, 5, join_of(f"{groups}-{at % groups}"))
        await peer.hear(MANY)
        peer.hang_up()
        await node.gone()

    node.play(play)


@pytest.mark.slow
def test_members_of_one_group_join_sync_send_heartbeats_and_leave(node: Node) -> None:
    """As many as a group may have, all waiting at once, so that each has a connection; few of them send at a time.
    Most of them leave in one request."""

    async def play(node: Node) -> None:
        peers = [await KafkaPeer.open(node) for _ in range(MEMBERS)]
        few = asyncio.Semaphore(50)

        async def join(peer: KafkaPeer) -> Any:
            async with few:
                asked = await peer.ask(ApiKey.JOIN_GROUP, 5, join_of("crowd"))
                peer.say(ApiKey.JOIN_GROUP, 5, join_of("crowd", asked.member_id))
            return await peer.answer(ApiKey.JOIN_GROUP, 5)

        joined = await asyncio.gather(*map(join, peers))
        assert {answer.error_code for answer in joined} == {0}
        generation = max(answer.generation_id for answer in joined)
        (leader,) = [answer for answer in joined if answer.members]
        assert len(leader.members) == MEMBERS
        Share = m.SyncGroupRequest.SyncGroupRequestAssignment
        shares = [Share(member_id=answer.member_id, assignment=b"y" * 32) for answer in joined]

        async def beat(peer: KafkaPeer, answer: Any) -> None:
            request = m.HeartbeatRequest(
                group_id="crowd", generation_id=generation, member_id=answer.member_id, group_instance_id=None
            )
            beaten = await peer.ask(ApiKey.HEARTBEAT, 3, request)
            assert beaten.error_code == 0

        async def sync(peer: KafkaPeer, answer: Any) -> Any:
            async with few:
                await beat(peer, answer)
            given = shares if answer is leader else []
            request = m.SyncGroupRequest(
                group_id="crowd", generation_id=generation, member_id=answer.member_id, assignments=given
            )
            return await peer.ask(ApiKey.SYNC_GROUP, 3, request)

        synced = await asyncio.gather(*map(sync, peers, joined))
        assert {(answer.error_code, bytes(answer.assignment)) for answer in synced} == {(0, b"y" * 32)}

        async def leave(peer: KafkaPeer, *answers: Any) -> Any:
            Leaver = m.LeaveGroupRequest.MemberIdentity
            leavers = [Leaver(member_id=answer.member_id, group_instance_id=None) for answer in answers]
            async with few:
                return await peer.ask(
                    ApiKey.LEAVE_GROUP, 3, m.LeaveGroupRequest(group_id="crowd", members=leavers)
                )

        some = MEMBERS // 10
        await asyncio.gather(*map(leave, peers[:some], joined))
        left = await leave(peers[some], *joined[some:])
        assert {answer.error_code for answer in left.members} == {0}
        for peer in peers:
            peer.hang_up()
        await node.gone()

    node.play(play)


@pytest.mark.slow
def test_transactions(node: Node) -> None:
    async def play(node: Node) -> None:
        peer = await KafkaPeer.open(node)
        for at in range(TRANSACTIONS):
            begin = m.InitProducerIdRequest(transactional_id=f"x{at}", transaction_timeout_ms=60_000)
            peer.say(ApiKey.INIT_PRODUCER_ID, 1, begin)
        await peer.hear(TRANSACTIONS)
        peer.hang_up()
        await node.gone()

    node.play(play)


@pytest.mark.slow
def test_partitions_that_one_connection_creates_and_writes_to(node: Node) -> None:
    create, produce = m.CreateTopicsRequest, m.ProduceRequest

    async def play(node: Node) -> None:
        peer = await KafkaPeer.open(node)
        names = [f"k{at}" for at in range(STORED)]
        made = [create.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
        peer.say(ApiKey.CREATE_TOPICS, 2, create(topics=made, timeout_ms=60_000, validate_only=False))
        await peer.hear(1)
        part = produce.PartitionProduceData(index=0, records=batch_of(b"x"))
        data = [produce.TopicProduceData(name=name, partition_data=[part]) for name in names]
        peer.say(ApiKey.PRODUCE, 5, produce(acks=-1, timeout_ms=60_000, topic_data=data))
        await peer.hear(1)
        peer.hang_up()
        await node.gone()

    node.play(play)


# --- RocketMQ ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_receives_that_wait(node: Node) -> None:
    """As many as HTTP/2 lets one connection have at once."""
    count = 1_000

    async def play(node: Node) -> None:
        address = node.up.addresses["rocketmq"]
        link = await GrpcLink.open(real_runtime(), address.host, "c", address.port)
        topic = rocketmq.Resource(name="waited")
        for at in range(count):
            link.begin(
                "ReceiveMessage",
                rocketmq.ReceiveMessageRequest(
                    group=rocketmq.Resource(name=f"g{at}"),
                    message_queue=rocketmq.MessageQueue(topic=topic),
                    batch_size=1,
                    auto_renew=True,
                ),
                ends=True,
            )
        link.close()
        await node.gone()

    node.play(play)


# --- limits ------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, "limits.connection_consumers=10", "limits.subscription_consumers=15")
    yield node
    node.stop()


def test_consumers_over_a_limit_are_refused_counted_and_logged_once(
    small: Node, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(node: Node) -> None:
        first, second = await PulsarPeer.open(node), await PulsarPeer.open(node)
        for peer, asked, expected in ((first, 20, 10), (second, 10, 5)):
            peer.say(*subscribes(asked, _Subscribe.Shared))
            found = await peer.hear(asked, api.CommandSuccess, api.CommandError)
            assert found == {"CommandSuccess": expected, "CommandError": asked - expected}
        first.hang_up()
        await node.until(lambda: node.consumers() == 5)
        third = await AmqpPeer.open(node)
        await third.channels(2)
        await third.declare("q")
        for at in range(10):
            third.say(1, consume("q", f"t{at}"))
        await third.hear(10, basic.ConsumeOk)
        third.say(2, consume("q", "one more"))
        await third.hear(1, amqp_channel.Close)

    asyncio.run(play(small))
    page = small.loop.call(lambda: _metrics(small))
    assert page["connection"] == 10 + 1
    assert page["subscription"] == 5
    logged = [record.getMessage() for record in caplog.records if "limits." in record.getMessage()]
    assert len(logged) == 2


async def _metrics(node: Node) -> dict[str, int]:
    families = node.up._admin().gateways()
    (family,) = [family for family in families if family.name == "weir_consumers_refused_total"]
    return {labels["limit"]: int(value) for labels, value in family.values}
