"""Brokers over a simulated storage cluster, each with workers that publish to all queues and consume them.

Brokers speak with each other over the peer protocol: a worker uses queues of other brokers as its own.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from random import Random

from weir.broker.bundles.settings import OwnershipSettings
from weir.broker.peers.settings import LISTENER, PeerClientSettings, PeerLinks, PeerServerSettings
from weir.model.errors import InvariantError, WeirError
from weir.model.policies import Policies
from weir.model.topics import DEFAULT_NAMESPACE
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.server.compose import ComposedBroker, Composition, compose_broker
from weir.testing.broker.node_settings import TAIL_BYTES
from weir.testing.queues.history import QueueHistory
from weir.testing.queues.plan import QueuePlan
from weir.testing.queues.workers import QUEUES, ROLE, TIMED, WORK, Worker, declarations, empty_all
from weir.testing.storage.cluster import LEDGER_SETTINGS, Cluster
from weir.testing.world.world import World

_PEER_PORT = 6660
_OWNERSHIP = OwnershipSettings(ttl_s=0.9, retry_s=0.1, close_timeout_s=1.0)
_PEERS = PeerLinks(client=PeerClientSettings(connect_timeout_s=0.5, request_timeout_s=2.0, ping_interval_s=0.5))
_PAUSE_S = 0.1


class QueueCluster(Cluster):
    ledger_settings = replace(LEDGER_SETTINGS, id_block=8)
    #: Topics that are unloaded, or handed over, now and then.
    moved_names: tuple[str, ...] = QUEUES

    def __init__(self, world: World, plan: QueuePlan) -> None:
        super().__init__(world, plan.storage)
        self.queue_plan = plan
        self.story = QueueHistory(lambda: world.now)
        self.broker_names: list[str] = []
        #: The last number of each queue's messages, over all publishers.
        self.numbers: dict[str, int] = {}
        self.declared = asyncio.Event()
        self.emptied = asyncio.Event()
        self._calm = False
        self._final = False
        self._dice = world.rng("moves")

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
        """Have everything taken out that is there."""
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
        plan = self.queue_plan
        how = Composition(
            name,
            {LISTENER: f"{name}:{_PEER_PORT}"},
            Policies(),
            ownership=_OWNERSHIP,
            streams=plan.streams,
            broker=plan.broker,
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
        await self._declare(runtime, composed)
        queues = await composed.queues.open(DEFAULT_NAMESPACE)
        worker = Worker(
            f"{name}/{self.story.step}",
            queues,
            self.queue_plan,
            clock=runtime.clock,
            rng=self._dice,
            story=self.story,
            numbers=self.numbers,
        )
        if not self._calm:
            for queue in (WORK, TIMED):
                workers.spawn(worker.publish(queue), f"publish to {queue}")
                workers.spawn(worker.consume(queue), f"consume {queue}")
        while not self._calm:
            await runtime.clock.sleep(_PAUSE_S)
        await workers.close()
        while not self._final:
            await runtime.clock.sleep(_PAUSE_S)
        if name == self.broker_names[0]:
            await empty_all(queues, runtime.clock, self.story)
            self.emptied.set()

    async def _declare(self, runtime: Runtime, composed: ComposedBroker) -> None:
        """As every client does it, each time."""
        for wanted in declarations(self.queue_plan):
            while True:
                try:
                    queues = await composed.queues.open(DEFAULT_NAMESPACE)
                    await queues.declare(ROLE, wanted)
                    break
                except InvariantError:
                    raise
                except WeirError:
                    await runtime.clock.sleep(_PAUSE_S)
        self.declared.set()

    async def _move(self, runtime: Runtime, composed: ComposedBroker) -> None:
        """Hand the bundle of a queue over, or unload its topic, now and then."""
        while self.queue_plan.moves:
            await runtime.clock.sleep(self._dice.uniform(0.3, 3.0))
            broker = composed.broker
            loaded = [topic for topic in broker.loaded if topic.name.local in self.moved_names]
            if self._calm or not loaded:
                continue
            topic = self._dice.choice(loaded).name
            try:
                if self._dice.random() < 0.6:
                    bundle = broker.bundles.bundle_of(topic)
                    await broker.bundles.hand_over(bundle, self._dice.choice(self.broker_names))
                else:
                    await broker.unload(topic)
            except InvariantError:
                raise
            except WeirError as failure:
                self.world.note("move", type(failure).__name__)
