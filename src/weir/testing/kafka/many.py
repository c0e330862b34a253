"""Several brokers of one cluster in this process, over one metadata store and one set of bookies, all in memory.

Each has its own ledger client, registration and claims, and its listeners on ports of 127.0.0.1, so that official
clients of both protocols find their way among them over real sockets. All run on the loop of one thread.

    brokers = ManyBrokers(3).start()
    brokers.bootstrap                   every Kafka listener: "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"
    brokers.move(part, to="broker2")    its bundle, as an administrator moves it
    brokers.end("broker1")              in order; `lose` instead is a crash: nothing is closed, its lease runs out
    brokers.begin("broker1")            anew, at another port
    brokers.stop()
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from weir.broker.api import Owner
from weir.broker.balance.balancer import BalanceSettings
from weir.broker.bundles.settings import OwnershipSettings
from weir.broker.groups.model import GroupSettings
from weir.broker.peers.server import PeerServer
from weir.broker.peers.settings import PeerLinks, PeerServerSettings
from weir.gateway.kafka.connection.server import KafkaServer
from weir.gateway.kafka.connection.settings import KafkaSettings
from weir.gateway.pulsar.server import PulsarServer
from weir.gateway.pulsar.settings import PulsarSettings
from weir.ledger.client import LedgerClient
from weir.meta import keys
from weir.meta.memory import MemoryCore, MemoryMeta
from weir.model.ids import BookieId
from weir.model.topics import TopicName
from weir.runtime.real import real_runtime
from weir.server.addresses import Address
from weir.server.compose import ComposedBroker, Composition, compose_broker
from weir.server.listening import BoundNetwork
from weir.testing.kafka.stage import Peer
from weir.testing.loop_thread import Call, LoopThread
from weir.testing.storage.fakes import FakeBookiePool
from weir.testing.world.meta import FaultyMeta, MetaFaults
from weir.wire.metadata import BookieInfo, encode_bookie_info

_HOST = "127.0.0.1"
_TIMEOUT_S = 60.0
_LOOK_S = 0.01
_BOOKIES = 1
#: A leader is elected; a test that wants a round asks for it.
_NO_ROUNDS_S = 86_400.0
_OWNERSHIP = OwnershipSettings(ttl_s=2.0, retry_s=0.05, close_timeout_s=1.0)
_GROUPS = GroupSettings(initial_delay_s=0.05, min_session_s=1.0)


@dataclass(frozen=True, slots=True)
class Running:
    """One broker of the cluster, and its way to the metadata."""

    composed: ComposedBroker
    meta: FaultyMeta
    peers: PeerServer
    kafka: KafkaServer
    pulsar: PulsarServer
    stack: AsyncExitStack


class ManyBrokers:
    """`broker0`, `broker1` and so on."""

    def __init__(self, count: int, **changes: Any) -> None:
        """`changes`: of each broker's `Composition`."""
        self._names = [f"broker{number}" for number in range(count)]
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
        self.running: dict[str, Running] = {}
        self._lost: list[Running] = []

    def call(self, work: Call, timeout_s: float = _TIMEOUT_S) -> Any:
        """Run a coroutine on the brokers' loop, and wait for it."""
        return self._loop.call(work, timeout_s)

    def start(self) -> "ManyBrokers":
        self.call(self._start)
        return self

    def stop(self) -> None:
        self.call(self._stop)
        self._loop.stop()

    async def _start(self) -> None:
        meta, count = MemoryMeta(self._core, self._runtime), len(self._names)
        for number in range(_BOOKIES):
            info = BookieInfo(BookieId(f"bookie{number}"), "nowhere", 1)
            await meta.put(keys.bookie_writable(info.bookie_id), encode_bookie_info(info))
        for name in self._names:
            await self._begin(name)
        await self._until(
            lambda: all(len(one.composed.broker.brokers()) == count for one in self.running.values())
        )

    async def _stop(self) -> None:
        for one in (*self._lost, *self.running.values()):
            one.meta.faults = MetaFaults()
            await one.stack.aclose()

    # --- one broker ----------------------------------------------------------------------------------------

    def begin(self, name: str) -> None:
        """Start a broker, or start it anew."""
        self.call(lambda: self._begin(name))

    async def _begin(self, name: str) -> None:
        net = BoundNetwork(self._runtime.net)
        kafka, pulsar, peer = [await net.bind(Address(_HOST, 0)) for _ in range(3)]
        runtime = replace(self._runtime, net=net)
        meta = FaultyMeta(MemoryMeta(self._core, runtime), runtime)
        stack = AsyncExitStack()
        stack.push_async_callback(meta.close)
        ledgers = LedgerClient(runtime, meta, self._pool)
        await ledgers.start()
        stack.push_async_callback(ledgers.close)
        listeners = {"kafka": str(kafka), "pulsar": f"pulsar://{pulsar}", "peer": str(peer)}
        how = Composition(name, listeners, **self._changes)
        composed = await compose_broker(runtime, meta, ledgers, how, stack)
        peers = await composed.serve_peers(PeerServerSettings(_HOST, peer.port, close_grace_s=0.1))
        self.running[name] = Running(
            composed,
            meta,
            peers,
            await composed.serve_kafka(KafkaSettings(host=_HOST, port=kafka.port, close_grace_s=0.5)),
            await composed.serve_pulsar(
                PulsarSettings(host=_HOST, port=pulsar.port, advertise=listeners["pulsar"], close_grace_s=0.5)
            ),
            stack,
        )

    def end(self, name: str) -> None:
        """Stop a broker in order, as SIGTERM does."""
        self.call(self.running.pop(name).stack.aclose)

    def lose(self, name: str) -> None:
        """Stop a broker as a crash does: its connections break, and it says nothing more to the metadata."""
        lost = self.running.pop(name)
        self._lost.append(lost)
        self.call(lambda: _cut_off(lost))

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
            return {one.composed.broker.owner_now(part).broker_id for one in self.running.values()}

        await self._until(lambda: len(said()) == 1 and said() <= set(self.running))
        (name,) = said()
        await self.running[name].composed.broker.load(part, create=False)
        return name

    def move(self, part: TopicName, to: str) -> None:
        """Hand a partition's bundle over to another broker; done when all know it."""
        self.call(lambda: self._move(part, to))

    async def _move(self, part: TopicName, to: str) -> None:
        owner = await self._owner(part)
        bundles = self.running[owner].composed.broker.bundles
        if owner != to:
            await bundles.hand_over(bundles.bundle_of(part), to)
        await self._until(lambda: all(one.broker_id == to for one in self._owners(part)))

    def _owners(self, part: TopicName) -> list[Owner]:
        return [one.composed.broker.owner_now(part) for one in self.running.values()]

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

    async def peer(self, name: str) -> Peer:
        """A Kafka client that speaks requests to one broker; to be used on the brokers' loop."""
        kafka = self.running[name].kafka
        return Peer(await self._runtime.net.connect(*kafka.advertised, timeout_s=_TIMEOUT_S))


async def _cut_off(lost: Running) -> None:
    lost.meta.faults = MetaFaults(outage=True)
    for kafka in lost.kafka.sessions:
        kafka.abort()
    for pulsar in lost.pulsar.sessions:
        pulsar.abort()
    await lost.peers.close()
    await lost.kafka.close()
    await lost.pulsar.close()
