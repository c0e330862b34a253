"""Brokers over a simulated storage cluster: real gateways, real ownership by lease, real registries.

Each broker is a node like any other: kept running, crashed, paused, cut off. Clients reach it by Pulsar's protocol
over the simulated network; nothing of a broker is shared with another but the metadata and the bookies.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import replace
from random import Random

from weir.broker.broker import Broker
from weir.broker.cluster.registration import OwnershipSettings
from weir.broker.topics.topic import BrokerTopic
from weir.model.batch import HeldId
from weir.model.errors import InvariantError, WeirError
from weir.model.policies import Policies, Retention
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.server.compose.broker import compose_broker
from weir.server.compose.composed import Composition
from weir.stream.holding.area import HoldingArea
from weir.testing.broker.history import BrokerHistory, MessagePosition
from weir.testing.broker.node_settings import TAIL_BYTES, pulsar_settings, pulsar_url
from weir.testing.broker.plan import BrokerPlan
from weir.testing.leading import claims_told
from weir.testing.log_history import LogOpKind
from weir.testing.storage.cluster import LEDGER_SETTINGS, Cluster
from weir.testing.world.world import World

_OWNERSHIP = OwnershipSettings(
    ttl_s=2.0, retry_s=0.1, close_timeout_s=1.0, ready_s=0.5, put_down_s=2.0, arrival_s=2.0, drain_s=4.0
)
#: Splits go on until a namespace has so many.
_MOST_BUNDLES = 12


class BrokerCluster(Cluster):
    """Bookies and brokers of one run."""

    #: Blocks that last for several ledgers, so that a broker has ids left that are lower than another's.
    ledger_settings = replace(LEDGER_SETTINGS, id_block=8)

    def __init__(self, world: World, plan: BrokerPlan) -> None:
        super().__init__(world, plan.storage)
        self.broker_plan = plan
        self.story = BrokerHistory(lambda: world.now)
        self.broker_names: list[str] = []
        #: Held messages that someone wants to cancel, by topic: the id and the payload.
        self.to_cancel: dict[str, dict[HeldId, str]] = {}
        self._dice: Random = world.rng("moves")
        self._calm = False

    def add_broker(self) -> str:
        name = f"broker{len(self.broker_names)}"
        self.broker_names.append(name)
        self.add_client(name, lambda runtime: self._run_broker(runtime, name))
        return name

    def url(self, name: str) -> str:
        return pulsar_url(name)

    def stop_clients(self) -> None:
        """End producers and consumers for good; brokers go on, and move nothing any more."""
        self._calm = True
        self.client_names = [name for name in self.client_names if name not in self.broker_names]
        super().stop_clients()
        self.client_names = list(self.broker_names)

    def some_broker(self, rng: Random) -> str:
        return rng.choice(self.broker_names)

    def end_broker(self, name: str) -> None:
        """Ask a broker to end in order, as SIGTERM does; it is started again later."""
        self.end_bookie(name)

    async def watch_claims(self, runtime: Runtime) -> None:
        """Write down who has which bundle, as the metadata tells it, for ever."""
        async for led in claims_told(self.core, runtime):
            self.story.note("metadata", LogOpKind.LED, topic=led.bundle, broker=led.start, epoch=led.epoch)

    # --- a broker's program ----------------------------------------------------------------------------------

    async def _run_broker(self, runtime: Runtime, name: str) -> None:
        """Everything that `weir up` composes for a broker, until it is asked to end."""
        ending = self._ending[name] = asyncio.Event()
        async with AsyncExitStack() as stack:
            broker = await self._compose(runtime, name, stack)
            tasks = TaskScope(f"{name} harness")
            stack.push_async_callback(tasks.close)
            tasks.spawn(self._move_bundles(runtime, broker), "moves")
            tasks.spawn(self._cancel_held(runtime, name, broker), "cancels")
            await ending.wait()

    async def _compose(self, runtime: Runtime, name: str, stack: AsyncExitStack) -> Broker:
        plan = self.broker_plan
        policies = Policies(
            deduplication=plan.deduplication, retention=Retention(-1, -1), max_unacked_per_consumer=30
        )
        how = Composition(
            name,
            {"pulsar": pulsar_url(name)},
            policies,
            ownership=_OWNERSHIP,
            streams=plan.streams,
            broker=plan.broker,
            holding=plan.holding,
            tail_bytes=TAIL_BYTES,
        )
        ledgers = await self.ledger_client(runtime, name)
        stack.push_async_callback(ledgers.close)
        composed = await compose_broker(runtime, ledgers.context.meta, ledgers, how, stack)
        await composed.serve_pulsar(pulsar_settings(name))
        return composed.broker

    # --- what only an administrator can do ---------------------------------------------------------------------

    async def _move_bundles(self, runtime: Runtime, broker: Broker) -> None:
        """Hand over the bundle of a topic that is in use, now and then, to some broker or to whom all would
        choose; make two of it; or unload the topic alone."""
        while self.broker_plan.moves:
            await runtime.clock.sleep(self._dice.uniform(0.3, 4.0))
            loaded = broker.loaded
            if self._calm or not loaded:
                continue
            topic = self._dice.choice(loaded).name
            bundle = broker.bundles.bundle_of(topic)
            die = self._dice.random()
            if die < self.broker_plan.splits and len(broker.bundles.of(bundle.namespace)) < _MOST_BUNDLES:
                await self._try(broker.bundles.split(bundle), "split")
            elif die < 0.75:
                await self._try(broker.bundles.hand_over(bundle, self._dice.choice(self.broker_names)), "move")
            elif die < 0.85:
                await self._try(broker.bundles.let_go(bundle), "let go")
            else:
                await self._try(broker.unload(topic), "unload")

    async def _try(self, work: Awaitable[object], what: str) -> None:
        try:
            await work
        except InvariantError:
            raise
        except WeirError as failure:
            self.world.note(what, type(failure).__name__)

    async def _cancel_held(self, runtime: Runtime, name: str, broker: Broker) -> None:
        """Cancel held messages of the topics that this broker has, or believes to have."""
        while self.broker_plan.cancelled > 0:
            await runtime.clock.sleep(0.2)
            for topic in broker.loaded:
                wanted = self.to_cancel.get(topic.name.local, {})
                if (
                    not isinstance(topic, BrokerTopic)
                    or not isinstance(topic.stored.area, HoldingArea)
                    or not wanted
                ):
                    continue
                held = next(iter(wanted))
                await self._cancel(name, topic.name.local, topic.stored.area, held, wanted.pop(held))

    async def _cancel(self, name: str, topic: str, holding: HoldingArea, held: HeldId, payload: str) -> None:
        place = MessagePosition(held.ledger, held.entry)
        pending = self.story.begin(name, LogOpKind.CANCEL, topic=topic, place=place, payload=payload)
        try:
            await holding.cancel(held)
        except InvariantError:
            raise
        except WeirError as failure:
            pending.failed(failure)
        else:
            pending.ok()
