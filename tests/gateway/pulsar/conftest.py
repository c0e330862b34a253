"""A whole broker in this process, on a thread of its own, for the official client to talk to."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pulsar
import pytest

from weir.bookie.bookie import Bookie
from weir.bookie.settings import BookieSettings, SpaceSettings
from weir.broker.api import Identity, Owner
from weir.broker.broker import Broker
from weir.broker.context import BrokerContext
from weir.broker.limits import Budget
from weir.broker.ports import SoleOwner
from weir.broker.registry import Registry
from weir.broker.security import Authenticator, Authoriser, SecuritySettings
from weir.broker.settings import BrokerSettings
from weir.broker.tokens import TokenVerifier
from weir.gateway.pulsar import PulsarServer, PulsarSettings, SessionLimits
from weir.gateway.pulsar.keys import keys_of
from weir.ledger.client import LedgerClient
from weir.meta import keys
from weir.meta.memory import MemoryCore, MemoryMeta
from weir.model.batch import BatchFormat
from weir.model.ids import BookieId
from weir.model.ledger import Quorum
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.runtime.real import real_runtime
from weir.stream.context import StreamContext
from weir.stream.settings import StreamSettings
from weir.stream.tail import TailCache
from weir.wire.metadata import BookieInfo, encode_bookie_info

TIMEOUT_MS = 20_000
Call = Callable[[], Coroutine[Any, Any, Any]]


class SecuredBroker(Broker):
    """Knows who is who by an authenticator that tests may change."""

    authenticator: Authenticator
    elsewhere: dict[TopicName, Owner] | None = None

    async def authenticate(self, method: str, credentials: bytes) -> Identity:
        return self.authenticator.authenticate(method, credentials)

    async def owner(self, name: TopicName, *, role: str) -> Owner:
        if self.elsewhere and name in self.elsewhere:
            return self.elsewhere[name]
        return await super().owner(name, role=role)


class RegistryGuard:
    """Asks the authoriser."""

    def __init__(self, authoriser: Authoriser) -> None:
        self._authoriser = authoriser

    def check(
        self, role: str, topic: TopicName, action: Action | None, *, subscription: str | None = None
    ) -> None:
        if action is None:
            self._authoriser.check_lookup(role, topic)
        else:
            self._authoriser.check(role, action, topic)


class OneBookie:
    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie

    def get(self, bookie_id: BookieId) -> Bookie:
        return self._bookie


class Node:
    """Bookie, broker and gateway, each startable on its own; everything runs on the loop of one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.security = SecuritySettings()
        self.tokens: TokenVerifier | None = None
        self.port = 0
        self.limits = SessionLimits()

    def call(self, work: Call, timeout_s: float = 30) -> Any:
        """Run a coroutine on the broker's loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(timeout_s)

    def start(self) -> None:
        self.call(self._start_storage)
        self.call(self._start_broker)
        self.call(self.start_gateway)

    def stop(self) -> None:
        self.call(self._stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def restart(self) -> None:
        """The broker goes down and comes back on the same port; what was stored is there."""

        async def restart() -> None:
            await self.server.close()
            await self.broker.close()
            await self.registry.close()
            await self._start_broker()
            await self.start_gateway()

        self.call(restart)

    def cut(self) -> None:
        """Break every connection."""

        async def cut() -> None:
            for session in list(self.server._sessions):
                session.abort()

        self.call(cut)

    @property
    def url(self) -> str:
        return self.server.service_url

    async def _start_storage(self) -> None:
        self.runtime = real_runtime()
        settings = BookieSettings(BookieId("b"), str(self._folder / "bookie"), space=SpaceSettings(0, 0))
        self.bookie = await Bookie.open(self.runtime, settings)
        self.core = MemoryCore(self.runtime.clock)
        self.meta = MemoryMeta(self.core, self.runtime)
        await self.meta.put(
            keys.bookie_writable(BookieId("b")), encode_bookie_info(BookieInfo(BookieId("b"), "nowhere", 1))
        )

    async def _start_broker(self) -> None:
        client = LedgerClient(self.runtime, self.meta, OneBookie(self.bookie))
        await client.start()
        streams = StreamContext(
            self.runtime, self.meta, client, TailCache(64 << 20), StreamSettings(quorum=Quorum(1, 1, 1))
        )
        settings = BrokerSettings()
        self.registry = Registry(self.meta, self.runtime)
        await self.registry.start()
        context = BrokerContext(
            self.runtime,
            streams,
            settings,
            Budget(settings.in_flight_bytes),
            {BatchFormat.PULSAR: keys_of},
            guard=RegistryGuard(Authoriser(self.registry, self.security)),
        )
        self.broker = SecuredBroker(context, self.registry, SoleOwner())
        self.broker.authenticator = Authenticator(self.runtime.clock, self.security, tokens=self.tokens)

    async def start_gateway(self, tls: Any = None) -> None:
        self.server = PulsarServer(
            self.runtime,
            self.broker,
            PulsarSettings(port=self.port, limits=self.limits),
            lists=self.registry,
            tls=tls,
        )
        await self.server.start()
        self.port = self.server.port

    async def _stop(self) -> None:
        await self.server.close()
        await self.broker.close()
        await self.registry.close()
        await self.bookie.close()

    def partition(self, topic: str, count: int) -> None:
        self.call(lambda: self.registry.topics.create(TopicName.parse(topic), partitions=count))


@pytest.fixture(scope="module")
def weir_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("node"))
    node.start()
    yield node
    node.stop()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Node]:
    """A broker for one test alone, to be broken or told otherwise."""
    node = Node(tmp_path)
    node.start()
    yield node
    node.stop()


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[..., pulsar.Client]]:
    """Makes clients of a broker, and closes them."""
    clients: list[pulsar.Client] = []

    def make(node: Node, **options: Any) -> pulsar.Client:
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(tmp_path / "client.log"))
        url = options.pop("url", node.url)
        client = pulsar.Client(url, operation_timeout_seconds=20, logger=quiet, **options)
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
    def drain(consumer: pulsar.Consumer, wait_ms: int = 300) -> list[pulsar.Message]:
        """Everything that comes until nothing does for a while."""
        found = []
        with suppress(pulsar.Timeout):
            while True:
                found.append(consumer.receive(wait_ms))
        return found

    @staticmethod
    def nothing_more(consumer: pulsar.Consumer) -> None:
        with pytest.raises(pulsar.Timeout):
            consumer.receive(200)

    @staticmethod
    def numbered(count: int, size: int = 0) -> list[bytes]:
        return [b"%06d" % at + b"." * size for at in range(count)]


@pytest.fixture(scope="session")
def talk() -> Talk:
    return Talk()
