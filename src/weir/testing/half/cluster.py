"""Brokers over a simulated storage cluster, each with workers that use its topics."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from random import Random

from weir.broker.bundles.settings import OwnershipSettings
from weir.broker.peers.settings import LISTENER, PeerClientSettings, PeerLinks, PeerServerSettings
from weir.model.batch import HeldId
from weir.model.errors import InvariantError, WeirError
from weir.model.half import Decision
from weir.model.policies import Policies, Retention
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.server.compose import ComposedBroker, Composition, compose_broker
from weir.testing.broker.node_settings import TAIL_BYTES
from weir.testing.half.final import read_back
from weir.testing.half.history import HalfHistory, HalfOpKind
from weir.testing.half.plan import HalfPlan
from weir.testing.half.workers import TOPICS, Worker
from weir.testing.storage.cluster import LEDGER_SETTINGS, Cluster
from weir.testing.world.world import World

_PEER_PORT = 6660
_OWNERSHIP = OwnershipSettings(ttl_s=0.9, retry_s=0.1, close_timeout_s=1.0)
_PEERS = PeerLinks(client=PeerClientSettings(connect_timeout_s=0.5, request_timeout_s=2.0, ping_interval_s=0.5))
_PAUSE_S = 0.1
_FEW_CHECKS, _MANY_CHECKS = 2, 100_000
#: Everything that was ever stored is read back in the end.
_FOREVER = Policies(retention=Retention(-1, -1))


class HalfCluster(Cluster):
    ledger_settings = replace(LEDGER_SETTINGS, id_block=8)

    def __init__(self, world: World, plan: HalfPlan) -> None:
        super().__init__(world, plan.storage)
        self.half_plan = plan
        self.story = HalfHistory(lambda: world.now)
        self.story.note("plan", HalfOpKind.RULES, gives_up=plan.gives_up)
        self.broker_names: list[str] = []
        #: What producers know besides the brokers, as a database would: ids, and how each is to be decided.
        self.ids: dict[int, HeldId] = {}
        self.fates: dict[int, Decision | None] = {}
        self.numbers: dict[str, int] = {}
        self.unread = dict.fromkeys(TOPICS)
        self.read = asyncio.Event()
        self._calm = False
        self._final = False
        self._dice = world.rng("workers")

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

    def read_all(self) -> None:
        """Have everything read back."""
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
            harness.spawn(self._unload(runtime, composed), "unload")
            await ending.wait()

    async def _compose(self, runtime: Runtime, name: str, stack: AsyncExitStack) -> ComposedBroker:
        plan = self.half_plan
        half = replace(plan.broker.half, checks=_FEW_CHECKS if plan.gives_up else _MANY_CHECKS)
        how = Composition(
            name,
            {LISTENER: f"{name}:{_PEER_PORT}"},
            _FOREVER,
            ownership=_OWNERSHIP,
            streams=plan.streams,
            broker=replace(plan.broker, half=half),
            holding=plan.holding,
            tail_bytes=TAIL_BYTES,
            peers=_PEERS,
            coordinator_shards=1,
        )
        ledgers = await self.ledger_client(runtime, name)
        stack.push_async_callback(ledgers.close)
        composed = await compose_broker(runtime, ledgers.context.meta, ledgers, how, stack)
        await composed.serve_peers(PeerServerSettings(name, _PEER_PORT, close_grace_s=0.5))
        return composed

    async def _work(self, runtime: Runtime, name: str, composed: ComposedBroker, workers: TaskScope) -> None:
        if not self._calm:
            life = f"{name}.{self.story.step}"
            worker = Worker(life, composed.broker, self, clock=runtime.clock, rng=self._dice, tasks=workers)
            worker.start()
        while not self._calm:
            await runtime.clock.sleep(_PAUSE_S)
        await workers.close()
        while not self._final:
            await runtime.clock.sleep(_PAUSE_S)
        await read_back(composed.broker, self, runtime.clock)
        self.read.set()

    async def _unload(self, runtime: Runtime, composed: ComposedBroker) -> None:
        """Now and then a topic is closed in order, for whoever asks next."""
        while True:
            await runtime.clock.sleep(self._dice.uniform(1.0, 6.0))
            loaded = [topic for topic in composed.broker.loaded if topic.name in TOPICS]
            if self._calm or not loaded:
                continue
            try:
                await composed.broker.unload(self._dice.choice(loaded).name)
            except InvariantError:
                raise
            except WeirError as failure:
                self.world.note("unload", type(failure).__name__)
