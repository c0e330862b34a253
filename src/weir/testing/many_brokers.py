"""Several brokers of one cluster in this process, over one metadata store and one set of bookies, all in memory.

Each has its own ledger client, registration and claims, and its listeners on ports of 127.0.0.1, so that official
clients of both protocols, and REST, find their way among them over real sockets. All run on one thread's loop.

    brokers = ManyBrokers().start()
    brokers.bootstrap                   every Kafka listener: "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"
    brokers["broker1"].do("GET", "brokers")
    brokers.move(part, to="broker2")    its bundle, as an administrator moves it
    brokers.end("broker1")              in order; `lose` instead is a crash: nothing is closed, its lease runs out
    brokers.begin("broker1")            anew, at another port
    brokers.stop()
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from socket import socket
from typing import Any

from weir.admin.api import admin_routes
from weir.admin.context import AdminContext, ServiceUrls
from weir.broker.api.broker import Owner
from weir.broker.balance.balancer import BalanceSettings
from weir.broker.broker import Broker
from weir.broker.cluster.registration import OwnershipSettings
from weir.broker.groups.group import GroupSettings
from weir.broker.metadata.definitions import Connectors, Functions, Replays, SqlStreams
from weir.broker.peers.peer_calls import PeerLinks, PeerServerSettings
from weir.broker.peers.peer_server import PeerServer
from weir.console.app import ConsoleParts
from weir.gateway.amqp.gateway import AmqpServer
from weir.gateway.amqp.management.api import management_routes
from weir.gateway.amqp.settings import AmqpSettings
from weir.gateway.kafka.gateway import KafkaServer
from weir.gateway.kafka.settings import KafkaSettings
from weir.gateway.pulsar.gateway import PulsarServer
from weir.gateway.pulsar.settings import PulsarSettings
from weir.gateway.rocketmq.gateway import RocketmqServer
from weir.gateway.rocketmq.settings import RocketmqSettings
from weir.ledger.client import LedgerClient
from weir.meta import keys
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.ids import BookieId
from weir.model.topics import DEFAULT_NAMESPACE, TopicName
from weir.rest.forwarding import AdminPeerHandler
from weir.rest.http import HttpSettings, Request
from weir.rest.server import AdminServer
from weir.runtime.real import real_runtime
from weir.server.addresses import Address
from weir.server.admin_service import ConsoleService
from weir.server.compose.broker import compose_broker
from weir.server.compose.composed import ComposedBroker, Composition
from weir.server.listeners import BoundNetwork
from weir.testing.kafka.stage import Peer
from weir.testing.loop_thread import Call, LoopThread
from weir.testing.ports import reserved
from weir.testing.storage.fakes import FakeBookiePool
from weir.testing.world.meta import FaultyMeta, MetaFaults
from weir.wire.metadata import BookieInfo, encode_bookie_info
from weir.wire.peer.calls import AdminCall

_HOST = "127.0.0.1"
_TIMEOUT_S = 60.0
_LOOK_S = 0.01
_BOOKIES = 1
#: A leader is elected; a test that wants a round asks for it.
_NO_ROUNDS_S = 86_400.0
_OWNERSHIP = OwnershipSettings(ttl_s=2.0, retry_s=0.05, close_timeout_s=1.0)
_GROUPS = GroupSettings(initial_delay_s=0.05, min_session_s=1.0)
_SCHEMES = {"kafka": "", "pulsar": "pulsar://", "amqp": "", "rocketmq": "", "http": "http://", "peer": ""}


@dataclass(frozen=True, slots=True)
class OneBroker:
    """One broker of the cluster, its listeners, and its way to the metadata."""

    name: str
    listeners: dict[str, str]
    composed: ComposedBroker
    meta: FaultyMeta
    peers: PeerServer
    kafka: KafkaServer
    pulsar: PulsarServer
    amqp: AmqpServer
    rocketmq: RocketmqServer
    admin: AdminServer
    stack: AsyncExitStack = field(repr=False)

    @property
    def url(self) -> str:
        return self.listeners["pulsar"]

    @property
    def http(self) -> str:
        return self.listeners["http"]

    @property
    def broker(self) -> Broker:
        return self.composed.broker

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, str], bytes]:
        """One request, sent nowhere else: status, headers, body. Paths without a slash are below `/admin/v2`."""
        host, _, port = self.http.removeprefix("http://").rpartition(":")
        connection = HTTPConnection(host, int(port), timeout=_TIMEOUT_S)
        headers = {} if body is None else {"content-type": "application/json"}
        target = path if path.startswith("/") else f"/admin/v2/{path}"
        connection.request(method, target, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        answer = response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        connection.close()
        return answer

    def do(self, method: str, path: str, body: Any = None) -> Any:
        """One request that is served here: what is answered, as JSON."""
        status, _, said = self.ask(method, path, body)
        assert status in (200, 204), f"{method} {path}: {status} {said[:300]!r}"
        return json.loads(said) if said else None

    async def cut_off(self) -> None:
        """As a crash does: its connections break, and it says nothing more to the metadata."""
        self.meta.faults = MetaFaults(outage=True)
        for kafka in self.kafka.sessions:
            kafka.abort()
        for pulsar in self.pulsar.sessions:
            pulsar.abort()
        for amqp in self.amqp.sessions:
            amqp.abort()
        for rocketmq in self.rocketmq.sessions:
            rocketmq.abort()
        await self.peers.close()
        await self.kafka.close()
        await self.pulsar.close()
        await self.amqp.close()
        await self.rocketmq.close()
        await self.admin.close()


class ManyBrokers:
    """`broker0`, `broker1` and so on, or by the names that are given."""

    def __init__(self, *names: str, count: int = 3, spread: bool = False, **changes: Any) -> None:
        """`spread`: the default namespace's bundles go round, so that four partitions that follow one another,
        which are always in four bundles, are on the first four brokers. `changes`: of each broker's `Composition`.
        """
        self._names = names or tuple(f"broker{number}" for number in range(count))
        self._spreads = spread
        self._changes = {
            "ownership": _OWNERSHIP,
            "groups": _GROUPS,
            "peers": PeerLinks(),
            "balance": BalanceSettings(interval_s=_NO_ROUNDS_S),
            **changes,
        }
        self._runtime = real_runtime()
        self._core = MemoryCore(self._runtime.clock)
        self._pool = FakeBookiePool()
        self._loop = LoopThread()
        #: Those that run, by name; those that were lost are not among them.
        self.running: dict[str, OneBroker] = {}
        self._lost: list[OneBroker] = []
        #: Ports of those that are gone.
        self._reserved: list[socket] = []

    def __getitem__(self, name: str) -> OneBroker:
        return self.running[name]

    def call(self, work: Call, timeout_s: float = _TIMEOUT_S) -> Any:
        """Run a coroutine on the brokers' loop, and wait for it."""
        return self._loop.call(work, timeout_s)

    def start(self) -> "ManyBrokers":
        self.call(self._start)
        return self

    def stop(self) -> None:
        self.call(self._stop)
        self._loop.stop()
        for held in self._reserved:
            held.close()

    async def _start(self) -> None:
        meta, count = MemoryMeta(self._core, self._runtime), len(self._names)
        for number in range(_BOOKIES):
            info = BookieInfo(BookieId(f"bookie{number}"), "nowhere", 1)
            await meta.put(keys.bookie_writable(info.bookie_id), encode_bookie_info(info))
        for name in self._names:
            await self._begin(name)
        await self._until(lambda: all(len(one.broker.brokers()) == count for one in self.running.values()))
        if self._spreads:
            await self._spread()

    async def _spread(self) -> None:
        members = list(self.running.values())
        moves = [member.composed.bundles for member in members if member.composed.bundles is not None]
        for at, bundle in enumerate(members[0].broker.bundles.of(DEFAULT_NAMESPACE)):
            name, to = bundle.name, members[at % len(members)].name
            chosen = moves[0].ownership.chosen(name, None)
            first = next(found for found in moves if found.ownership.me.broker_id == chosen)
            await first.ownership.take(name)
            await first.hand_over(name, to)
            while any(found.info(name).owner != to for found in moves):
                await self._runtime.clock.sleep(_LOOK_S)

    async def _stop(self) -> None:
        for one in (*self._lost, *self.running.values()):
            one.meta.faults = MetaFaults()
            await one.stack.aclose()

    # --- one broker ----------------------------------------------------------------------------------------

    def begin(self, name: str, **changes: Any) -> None:
        """Start a broker, or start it anew; `changes`: of its `Composition`, beyond everybody's."""
        self.call(lambda: self._begin(name, **changes))

    async def _begin(self, name: str, **changes: Any) -> None:
        net = BoundNetwork(self._runtime.net)
        bound = {kind: await net.bind(Address(_HOST, 0)) for kind in _SCHEMES}
        listeners = {kind: f"{_SCHEMES[kind]}{address}" for kind, address in bound.items()}
        runtime = replace(self._runtime, net=net)
        meta = FaultyMeta(MemoryMeta(self._core, runtime), runtime)
        stack = AsyncExitStack()
        stack.push_async_callback(meta.close)
        ledgers = LedgerClient(runtime, meta, self._pool)
        await ledgers.start()
        stack.push_async_callback(ledgers.close)
        how = Composition(name, listeners, **self._changes | changes)
        composed = await compose_broker(runtime, meta, ledgers, how, stack)
        context = AdminContext(
            runtime.clock,
            composed.broker,
            composed.registry,
            composed.schemas,
            composed.authoriser,
            ServiceUrls(listeners),
            transactions=composed.transaction_access,
            sql_streams=SqlStreams(meta, runtime),
            connectors=Connectors(meta, runtime),
            functions=Functions(meta, runtime),
            replays=Replays(meta, runtime),
            broker_id=name,
            ask_peer=composed.peers.ask,
            balance=composed.balance,
            exchanges=composed.exchanges,
            queues=composed.queues,
            connections=composed.connections,
        )
        console = ConsoleService(context, ConsoleParts(b"one key for all brokers, 32 byte"))
        routes = [*admin_routes(context), *management_routes(context), *console.api()]
        composed.peer_handlers.on(AdminCall, AdminPeerHandler(routes).perform)
        peers = await composed.serve_peers(PeerServerSettings(_HOST, bound["peer"].port, close_grace_s=0.1))
        kafka = KafkaSettings(host=_HOST, port=bound["kafka"].port, http_url=listeners["http"], close_grace_s=0.5)
        pulsar = PulsarSettings(
            host=_HOST,
            port=bound["pulsar"].port,
            advertise=listeners["pulsar"],
            close_grace_s=0.5,
            sweep_interval_s=0.05,
        )

        async def anybody(request: Request) -> str:
            return (await composed.broker.authenticate("none", b"")).role

        pages = console.pages(routes, anybody, tls=False)
        http = HttpSettings(host=_HOST, port=bound["http"].port)
        admin = AdminServer(runtime, http, routes, anybody, pages=pages)
        await admin.start()
        stack.push_async_callback(admin.close)
        self.running[name] = OneBroker(
            name,
            listeners,
            composed,
            meta,
            peers,
            await composed.serve_kafka(kafka),
            await composed.serve_pulsar(pulsar),
            await composed.serve_amqp(AmqpSettings(_HOST, bound["amqp"].port, close_grace_s=0.5)),
            await composed.serve_rocketmq(RocketmqSettings(_HOST, bound["rocketmq"].port, close_grace_s=0.5)),
            admin,
            stack,
        )

    def end(self, name: str) -> None:
        """Stop a broker in order, as SIGTERM does."""
        ended = self.running.pop(name)
        self.call(ended.stack.aclose)
        self._reserve(ended)

    def lose(self, name: str) -> None:
        """Stop a broker as a crash does."""
        lost = self.running.pop(name)
        self._lost.append(lost)
        self.call(lost.cut_off)
        self._reserve(lost)

    def _reserve(self, gone: OneBroker) -> None:
        """Clients still try its ports."""
        self._reserved += reserved(gone.listeners.values())

    def leader(self) -> str:
        """The broker that is elected, as all that run agree."""
        return str(self.call(self._leader))

    async def _leader(self) -> str:
        def said() -> set[str]:
            balances = [one.composed.balance for one in self.running.values()]
            return {balance.leader() for balance in balances if balance is not None}

        await self._until(lambda: len(said()) == 1 and said() <= set(self.running))
        return said().pop()

    # --- who has what --------------------------------------------------------------------------------------

    def owner(self, part: TopicName) -> str:
        """The broker that serves a partition, as all that run agree; it is loaded there if need be."""
        return str(self.call(lambda: self._owner(part)))

    async def _owner(self, part: TopicName) -> str:
        def said() -> set[str]:
            return {one.broker.owner_now(part).broker_id for one in self.running.values()}

        await self._until(lambda: len(said()) == 1 and said() <= set(self.running))
        (name,) = said()
        await self.running[name].broker.load(part, create=False)
        return name

    def move(self, part: TopicName, to: str) -> None:
        """Hand a partition's bundle over to another broker; done when all know it."""
        self.call(lambda: self._move(part, to))

    async def _move(self, part: TopicName, to: str) -> None:
        owner = await self._owner(part)
        bundles = self.running[owner].broker.bundles
        if owner != to:
            await bundles.hand_over(bundles.bundle_of(part), to)
        await self._until(lambda: all(one.broker_id == to for one in self._owners(part)))

    def _owners(self, part: TopicName) -> list[Owner]:
        return [one.broker.owner_now(part) for one in self.running.values()]

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds, as it is looked at on the brokers' loop."""
        self.call(lambda: self._until(holds))

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(_TIMEOUT_S):
            while not holds():
                await self._runtime.clock.sleep(_LOOK_S)

    # --- clients -------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """Every broker's listener for Kafka's clients."""
        return ",".join(self.address(name) for name in self.running)

    def address(self, name: str) -> str:
        """Where Kafka's clients reach one broker."""
        return "{}:{}".format(*self.running[name].kafka.advertised)

    @property
    def service_url(self) -> str:
        """Every broker's listener for Pulsar's clients."""
        return "pulsar://" + ",".join(f"{one.pulsar.host}:{one.pulsar.port}" for one in self.running.values())

    @property
    def endpoints(self) -> str:
        """Every broker's listener for RocketMQ's clients."""
        return ";".join(one.listeners["rocketmq"] for one in self.running.values())

    async def peer(self, name: str) -> Peer:
        """A Kafka client that speaks requests to one broker; to be used on the brokers' loop."""
        kafka = self.running[name].kafka
        return Peer(await self._runtime.net.connect(*kafka.advertised, timeout_s=_TIMEOUT_S))
