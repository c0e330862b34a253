"""Brokers over a simulated storage cluster that speak with each other, each with workers in its own process.

A scenario says how a broker is composed, what its workers do, and how topics are moved about meanwhile.
"""

import asyncio
from abc import abstractmethod
from contextlib import AsyncExitStack
from dataclasses import replace
from random import Random
from typing import Protocol

from weir.broker.cluster.registration import OwnershipSettings
from weir.broker.peers.peer_calls import LISTENER, PeerClientSettings, PeerLinks, PeerServerSettings
from weir.broker.settings import BrokerSettings
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.server.compose.broker import compose_broker
from weir.server.compose.composed import ComposedBroker, Composition
from weir.stream.settings import StreamSettings
from weir.testing.broker.node_settings import TAIL_BYTES
from weir.testing.storage.cluster import LEDGER_SETTINGS, Cluster
from weir.testing.storage.plan import Plan
from weir.testing.world.world import World

PAUSE_S = 0.1
_PEER_PORT = 6660
_OWNERSHIP = OwnershipSettings(ttl_s=0.9, retry_s=0.1, close_timeout_s=1.0)
_PEERS = PeerLinks(client=PeerClientSettings(connect_timeout_s=0.5, request_timeout_s=2.0, ping_interval_s=0.5))


class WorkPlan(Protocol):
    """What the plan of each such scenario has."""

    @property
    def storage(self) -> Plan: ...
    @property
    def streams(self) -> StreamSettings: ...
    @property
    def broker(self) -> BrokerSettings: ...


class WorkedBrokers(Cluster):
    ledger_settings = replace(LEDGER_SETTINGS, id_block=8)

    def __init__(self, world: World, plan: WorkPlan, dice: Random) -> None:
        super().__init__(world, plan.storage)
        self.broker_names: list[str] = []
        #: The final reader has seen all that is there.
        self.emptied = asyncio.Event()
        self._work_plan = plan
        self._calm = False
        self._final = False
        self._dice = dice

    def add_broker(self) -> None:
        name = f"broker{len(self.broker_names)}"
        self.broker_names.append(name)
        self.add_client(name, lambda runtime: self._run_broker(runtime, name))

    def some_broker(self, rng: Random) -> str:
        return rng.choice(self.broker_names)

    def end_broker(self, name: str) -> None:
        """Ask a broker to end in order, as SIGTERM does; it is started again later."""
        self.end_bookie(name)

    def stop_clients(self) -> None:
        """Workers end; brokers go on."""
        self._calm = True

    def empty(self) -> None:
        """Have everything read that is there."""
        self._final = True

    # --- a broker's program -------------------------------------------------------------------------------------

    async def _run_broker(self, runtime: Runtime, name: str) -> None:
        ending = self._ending[name] = asyncio.Event()
        async with AsyncExitStack() as stack:
            composed = await self._compose(runtime, name, stack)
            workers, harness = TaskScope(f"{name} workers"), TaskScope(f"{name} harness")
            stack.push_async_callback(harness.close)
            stack.push_async_callback(workers.close)
            harness.spawn(self._work(runtime, name, composed, workers), "work")
            harness.spawn(self._move(runtime, composed), "moves")
            await ending.wait()

    async def _compose(self, runtime: Runtime, name: str, stack: AsyncExitStack) -> ComposedBroker:
        ledgers = await self.ledger_client(runtime, name)
        stack.push_async_callback(ledgers.close)
        composed = await compose_broker(runtime, ledgers.context.meta, ledgers, self._composition(name), stack)
        await composed.serve_peers(PeerServerSettings(name, _PEER_PORT, close_grace_s=0.5))
        return composed

    def _composition(self, name: str) -> Composition:
        return Composition(
            name,
            {LISTENER: f"{name}:{_PEER_PORT}"},
            ownership=_OWNERSHIP,
            streams=self._work_plan.streams,
            broker=self._work_plan.broker,
            tail_bytes=TAIL_BYTES,
            peers=_PEERS,
            coordinator_shards=1,
        )

    async def _end_of(self, workers: TaskScope, runtime: Runtime) -> None:
        """Workers have ended, and it is time to look at what is there."""
        while not self._calm:
            await runtime.clock.sleep(PAUSE_S)
        await workers.close()
        while not self._final:
            await runtime.clock.sleep(PAUSE_S)

    @abstractmethod
    async def _work(self, runtime: Runtime, name: str, composed: ComposedBroker, workers: TaskScope) -> None:
        """Start a broker's workers unless it is calm already, and read everything in the end."""

    @abstractmethod
    async def _move(self, runtime: Runtime, composed: ComposedBroker) -> None:
        """Unload topics, or hand them over, now and then."""
