"""A whole Weir in this process, on a thread of its own, for the official client to talk to."""

import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pulsar
import pytest

from weir.broker.api.broker import Owner
from weir.broker.broker import Broker
from weir.broker.metadata.registry import Registry
from weir.gateway.pulsar import PulsarServer, PulsarSettings, SessionLimits
from weir.model.errors import NetworkError
from weir.model.policies import Policies
from weir.model.topics import TopicName
from weir.runtime.interfaces import Runtime
from weir.runtime.real import real_runtime
from weir.server.broker_node import BrokerNode
from weir.server.config.load import load
from weir.testing.broker.fake import FakeBroker
from weir.testing.loop_thread import Call, LoopThread
from weir.testing.world.world import World, simulate
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.frames import Frame, decode_frame, encode_command, encode_with_message, splitter
from weir.wire.pulsar.message import seal_message
from weir.wire.pulsar.proto import Message

TIMEOUT_MS = 60_000
TIMEOUT_S = TIMEOUT_MS / 1000


class Node:
    """Starts and stops a broker; everything of it runs on the loop of one thread."""

    def __init__(self, folder: Path, *settings: str, **limits: Any) -> None:
        self._folder = folder
        self._settings = settings
        self._limits = limits
        self._loop = LoopThread()
        self._address = "127.0.0.1:0"

    def call(self, work: Call, timeout_s: float = TIMEOUT_S) -> Any:
        """Run a coroutine on the broker's loop, and wait for it."""
        return self._loop.call(work, timeout_s)

    def start(self) -> None:
        self.call(self._start)

    async def _start(self) -> None:
        config = load(
            assignments=[
                f"data={self._folder}",
                f"listeners.pulsar={self._address}",
                "listeners.kafka=",
                "listeners.amqp=",
                "listeners.rocketmq=",
                "listeners.http=127.0.0.1:0",
                "storage.low_water_bytes=0",
                "storage.journal_file_bytes=4MiB",
                *self._settings,
            ]
        ).config
        self.up = BrokerNode(real_runtime(), config, adjust_pulsar=self._adjust)
        await self.up.start()
        self._address = str(self.up.addresses["pulsar"])

    def _adjust(self, settings: PulsarSettings) -> PulsarSettings:
        limits = replace(settings.limits, **self._limits)
        return replace(settings, limits=limits, sweep_interval_s=0.05)

    def stop(self) -> None:
        self.call(self.up.close)
        self._loop.stop()

    def restart(self) -> None:
        """It goes down and comes back on the same port; what was stored is there."""
        self.call(self.up.close)
        self.call(self._start)

    def cut(self) -> None:
        """Break every connection."""

        async def cut() -> None:
            for session in self.sessions():
                session.abort()

        self.call(cut)

    def begin(self, work: Call) -> "Future[Any]":
        """Run a coroutine on the broker's loop, without waiting for it."""
        return self._loop.begin(work)

    async def peer(self) -> "Peer":
        """A client that speaks frames, connected over a socket; to be used on the broker's loop."""
        address = self.up.addresses["pulsar"]
        return Peer(await real_runtime().net.connect(address.host, address.port))

    def sessions(self) -> list[Any]:
        return list(self.up.pulsar_servers["pulsar"].sessions)

    @property
    def url(self) -> str:
        return self.up.pulsar_servers["pulsar"].service_url

    @property
    def broker(self) -> Broker:
        return self.up.composed.broker

    @property
    def registry(self) -> Registry:
        return self.up.composed.registry

    def partition(self, topic: str, count: int) -> None:
        self.call(lambda: self.registry.topics.create(TopicName.parse(topic), partitions=count))

    def set_policies(self, topic: str, policies: Policies) -> None:
        """Make a topic with policies of its own."""
        name = TopicName.parse(topic)

        async def make() -> None:
            await self.registry.topics.create(name)
            await self.registry.change_policies(name, lambda _: policies)

        self.call(make)

    def send_elsewhere(self, topic: str, owner: Owner) -> None:
        """Another broker serves the topic."""
        ask = self.broker.owner

        async def answer(name: TopicName, *, role: str) -> Owner:
            return owner if name == TopicName.parse(topic) else await ask(name, role=role)

        self.broker.owner = answer  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def weir_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("node"))
    node.start()
    yield node
    node.stop()


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Starts brokers for one test alone: with settings as for `weir up --set`, and limits of their sessions."""
    nodes: list[Node] = []

    def start(*settings: str, **limits: Any) -> Node:
        node = Node(tmp_path / f"node{len(nodes)}", *settings, **limits)
        node.start()
        nodes.append(node)
        return node

    yield start
    for node in nodes:
        node.stop()


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[..., pulsar.Client]]:
    """Makes clients of a broker, and closes them."""
    clients: list[pulsar.Client] = []

    def make(node: Node, **options: Any) -> pulsar.Client:
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(tmp_path / "client.log"))
        url = options.pop("url", node.url)
        client = pulsar.Client(url, operation_timeout_seconds=60, logger=quiet, **options)
        clients.append(client)
        return client

    yield make
    for client in clients:
        with suppress(pulsar.AlreadyClosed):
            client.close()


@pytest.fixture
def client(weir_broker: Node, connect: Callable[..., pulsar.Client]) -> pulsar.Client:
    return connect(weir_broker)


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"persistent://public/default/t-{uuid4().hex}"


class Talk:
    """What tests say again and again."""

    @staticmethod
    def send(producer: pulsar.Producer, payloads: list[bytes], **more: Any) -> list[Any]:
        """Send without waiting for each, then for all; their ids."""
        results: list[Any] = []
        for payload in payloads:
            producer.send_async(payload, lambda result, at: results.append((result, at)), **more)
        producer.flush()
        Talk.until(lambda: len(results) == len(payloads))  # a flush may end before the last call back
        assert [result for result, _ in results] == [pulsar.Result.Ok] * len(payloads)
        return [at for _, at in results]

    @staticmethod
    def receive(consumer: pulsar.Consumer, count: int, *, ack: bool = True) -> list[bytes]:
        found = []
        for _ in range(count):
            message = consumer.receive(TIMEOUT_MS)
            found.append(message.data())
            if ack:
                consumer.acknowledge(message)
        return found

    @staticmethod
    def read(reader: pulsar.Reader, count: int) -> list[bytes]:
        return [reader.read_next(TIMEOUT_MS).data() for _ in range(count)]

    @staticmethod
    def batches(most: int) -> dict[str, Any]:
        """A producer's options. Its batches are full, or ended by a flush; never by time that passes."""
        delay = {"batching_max_publish_delay_ms": TIMEOUT_MS}
        return {"batching_enabled": True, "batching_max_messages": most, **delay}

    @staticmethod
    def until(true: Callable[[], Any]) -> None:
        """Wait for something, however slow the machine is; not for ever."""
        deadline = time.monotonic() + TIMEOUT_S
        while not true():
            assert time.monotonic() < deadline, "it did not come true"
            time.sleep(0.005)

    @staticmethod
    def share(consumers: list[pulsar.Consumer], count: int, *, ack: bool = False) -> list[list[pulsar.Message]]:
        """What each consumer gets, until together they have so many different messages."""
        found: list[list[pulsar.Message]] = [[] for _ in consumers]
        seen: dict[bytes, None] = {}

        def poll() -> bool:
            for consumer, mine in zip(consumers, found, strict=True):
                with suppress(pulsar.Timeout):
                    while len(seen) < count:
                        message = consumer.receive(10)
                        mine.append(message)
                        seen[message.data()] = None
                        if ack:
                            consumer.acknowledge(message)
            return len(seen) >= count

        Talk.until(poll)
        return found

    @staticmethod
    def nothing_more(consumer: pulsar.Consumer, producer: pulsar.Producer) -> None:
        """The next message is one that is sent only now."""
        producer.send(b"the end")
        message = consumer.receive(TIMEOUT_MS)
        assert message.data() == b"the end"
        consumer.acknowledge(message)

    @staticmethod
    def silent(consumer: pulsar.Consumer) -> None:
        """Nothing comes for a while; for where nothing can be sent that would show it for certain."""
        with pytest.raises(pulsar.Timeout):
            consumer.receive(200)

    @staticmethod
    def numbered(count: int, size: int = 0) -> list[bytes]:
        return [b"%06d" % at + b"." * size for at in range(count)]


@pytest.fixture(scope="session")
def talk() -> Talk:
    return Talk()


# --- the protocol, frame by frame, in simulated time ----------------------------------------------------


class Peer:
    """A client that speaks frames: says one thing, and looks at what comes."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._splitter = splitter()
        self._frames: list[Frame] = []

    def say(self, *commands: Message) -> None:
        self.connection.write([encode_command(command) for command in commands])

    def send(self, producer_id: int, sequence: int, payload: bytes = b"x", **metadata: Any) -> None:
        """A message, as a producer sends it."""
        head = api.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1, **metadata)
        count = metadata.get("num_messages_in_batch", 1)
        command = api.CommandSend(producer_id=producer_id, sequence_id=sequence, num_messages=count)
        self.connection.write(encode_with_message(command, seal_message(head, payload)))

    async def frame(self) -> Frame | None:
        """The next frame; None at the end of the connection."""
        while not self._frames:
            data = await self.connection.receive()
            if not data:
                return None
            self._frames += [decode_frame(body) for body in self._splitter.feed(bytes(data))]
        return self._frames.pop(0)

    async def hear(self, kind: type[Any]) -> Any:
        """The next command, which must be of this kind."""
        frame = await self.frame()
        assert frame is not None, f"the connection ended instead of {kind.__name__}"
        assert isinstance(frame.command, kind), frame.command
        return frame.command

    async def message(self) -> tuple[api.CommandMessage, memoryview]:
        frame = await self.frame()
        assert frame is not None
        assert isinstance(frame.command, api.CommandMessage), frame.command
        assert frame.message is not None
        return frame.command, frame.message

    async def hangs_up(self) -> bool:
        """Whether the connection ends with nothing more said."""
        try:
            return await self.frame() is None
        except NetworkError:
            return True

    async def greet(self, **connect: Any) -> api.CommandConnected:
        connect.setdefault("client_version", "peer")
        self.say(api.CommandConnect(protocol_version=20, **connect))
        connected: api.CommandConnected = await self.hear(api.CommandConnected)
        return connected

    async def produce(self, topic: str, producer_id: int = 1, **more: Any) -> None:
        self.say(api.CommandProducer(topic=topic, producer_id=producer_id, request_id=100 + producer_id, **more))
        await self.hear(api.CommandProducerSuccess)

    async def subscribe(self, topic: str, consumer_id: int = 1, subscription: str = "s", **more: Any) -> None:
        more.setdefault("subType", api.CommandSubscribe.Exclusive)
        self.say(
            api.CommandSubscribe(
                topic=topic,
                subscription=subscription,
                consumer_id=consumer_id,
                request_id=200 + consumer_id,
                initialPosition=api.CommandSubscribe.Earliest,
                **more,
            )
        )
        await self.hear(api.CommandSuccess)


@dataclass
class Stage:
    """A gateway over a fake broker, and peers of it."""

    broker: FakeBroker
    server: PulsarServer
    runtime: Runtime
    network: Any

    async def peer(self, **connect: Any) -> Peer:
        """One that is connected already."""
        peer = await self.stranger()
        await peer.greet(**connect)
        return peer

    async def fill(self, *counts: int) -> Any:
        """The topic `t` with batches of these sizes, sent by another client."""
        peer = await self.peer()
        await peer.produce("persistent://public/default/t")
        for sequence, count in enumerate(counts):
            peer.send(1, sequence, b"%d" % sequence, **({"num_messages_in_batch": count} if count > 1 else {}))
            await peer.hear(api.CommandSendReceipt)
        return self.broker.at("persistent://public/default/t")

    async def stranger(self) -> Peer:
        return Peer(await self.network.connect("server", self.server.port))

    async def later(self, seconds: float) -> None:
        await self.runtime.clock.sleep(seconds)


Play = Callable[[Stage], Coroutine[Any, Any, None]]


@pytest.fixture
def play() -> Callable[..., None]:
    """Runs a conversation with a gateway in simulated time."""

    def run(conversation: Play, **limits: Any) -> None:
        async def scenario(world: World) -> None:
            async def main(runtime: Runtime) -> None:
                broker = FakeBroker()
                settings = PulsarSettings(
                    host="server", port=6650, limits=SessionLimits(**limits), max_connections=20
                )
                server = PulsarServer(runtime, broker, settings, lists=None)
                await server.start()

                async def client(its: Runtime) -> None:
                    await conversation(Stage(broker, server, its, its.net))

                await world.node("client").start(client)
                await server.close()

            await world.node("server").start(main)

        simulate(1, scenario)

    return run
