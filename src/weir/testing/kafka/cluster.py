"""One active broker with a Kafka gateway over a simulated storage cluster, and another one that stands by.

Whoever is active serves everything: topics, groups, transactions. When the other takes over, the first may go on
for a while without knowing it, cut off from the metadata, with the clients that are connected to it.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from random import Random

from weir.broker.cluster.registration import OwnershipSettings
from weir.broker.groups.group import GroupSettings
from weir.broker.transactions.transaction import TransactionSettings
from weir.gateway.kafka.settings import KafkaSettings, SessionLimits
from weir.model.policies import Policies, Retention
from weir.runtime.interfaces import Runtime
from weir.server.compose.broker import compose_broker
from weir.server.compose.composed import ComposedBroker, Composition
from weir.testing.broker.node_settings import TAIL_BYTES, pulsar_settings, pulsar_url
from weir.testing.kafka.clients.client import PORT, KafkaLink, Link
from weir.testing.kafka.history import KafkaHistory
from weir.testing.kafka.plan import KafkaPlan
from weir.testing.log_history import LogOpKind
from weir.testing.storage.cluster import LEDGER_SETTINGS, Cluster, Main
from weir.testing.world.meta import MetaFaults
from weir.testing.world.world import World

BROKERS = ("broker0", "broker1")
_OWNERSHIP = OwnershipSettings(ttl_s=0.9, retry_s=0.1, close_timeout_s=1.0)
_LIMITS = SessionLimits(auth_timeout_s=2.0, idle_timeout_s=5.0, stall_timeout_s=3.0, settle_s=0.5)
_GROUPS = GroupSettings(initial_delay_s=0.1, min_session_s=0.3, new_member_s=5.0)
_TRANSACTIONS = TransactionSettings(sweep_s=0.3, end_wait_s=2.0, retry_pause_s=0.1)
_PRODUCER_IDS = 4
_MOST_DOWN_S = 0.6


class KafkaCluster(Cluster):
    """Bookies and brokers of one run."""

    ledger_settings = replace(LEDGER_SETTINGS, id_block=8)

    def __init__(self, world: World, plan: KafkaPlan) -> None:
        super().__init__(world, plan.storage)
        self.kafka_plan = plan
        self.story = KafkaHistory(lambda: world.now)
        self.broker_names: tuple[str, ...] = BROKERS
        self.active = BROKERS[0]
        #: Clients that are not stopped before the final reader comes.
        self.staying: list[str] = []
        self._called: dict[str, asyncio.Event] = {}

    def add_brokers(self) -> None:
        for name in BROKERS:
            self.add_client(name, self._broker(name))

    def _broker(self, name: str) -> Main:
        async def main(runtime: Runtime) -> None:
            await self._run_broker(runtime, name)

        return main

    def stop_clients(self) -> None:
        """End all clients for good; brokers go on, and whoever stays to the end."""
        staying = [name for name in self.client_names if name in (*self.broker_names, *self.staying)]
        self.client_names = [name for name in self.client_names if name not in staying]
        super().stop_clients()
        self.client_names = staying

    async def _down(self, seconds: float, *, at_least: float) -> None:
        """Nobody stays away for long: the run is short, and there is one broker."""
        await super()._down(min(seconds, _MOST_DOWN_S), at_least=at_least)

    # --- who is active -----------------------------------------------------------------------------------------

    @property
    def standby(self) -> str:
        return BROKERS[1 - BROKERS.index(self.active)]

    def take_over(self) -> str:
        """Let the other broker be the active one; the first goes on as a zombie, whose name is answered."""
        zombie, self.active = self.active, self.standby
        self.world.note("take over", self.active)
        self.story.note(self.active, LogOpKind.TOOK_OVER)
        self.set_meta_faults(MetaFaults(outage=True), node=zombie)
        if self.active in self._called:
            self._called[self.active].set()
        return zombie

    def bury(self, zombie: str) -> None:
        """The zombie ends, and stands by from then on."""
        if zombie != self.active:
            self.world.node(zombie).crash()
            self._called.pop(zombie, None)
        self.set_meta_faults(None, node=zombie)

    @property
    def some_address(self) -> str:
        """A broker that a client may ask first."""
        return self.active

    async def connect(self, runtime: Runtime, name: str) -> Link:
        """A client's connection to whoever is active."""
        return await KafkaLink.open(runtime, name, self.active)

    def some_broker(self, rng: Random) -> str:
        """The one that matters."""
        return self.active

    def end_broker(self, name: str) -> None:
        """Ask a broker to end in order, as SIGTERM does; it is started again later."""
        self.end_bookie(name)

    # --- a broker's program ----------------------------------------------------------------------------------

    async def _run_broker(self, runtime: Runtime, name: str) -> None:
        """Everything that `weir up` composes for a broker, once it is active and until it is asked to end."""
        called = self._called[name] = asyncio.Event()
        if self.active != name:
            await called.wait()
        ending = self._ending[name] = asyncio.Event()
        async with AsyncExitStack() as stack:
            await self.compose(runtime, name, stack)
            await ending.wait()

    def composition(self, name: str) -> Composition:
        """What is decided about a broker."""
        plan = self.kafka_plan
        return Composition(
            name,
            {"pulsar": pulsar_url(name), "kafka": f"{name}:{PORT}"},
            Policies(retention=Retention(-1, -1)),
            ownership=_OWNERSHIP,
            streams=plan.streams,
            broker=plan.broker,
            holding=plan.holding,
            groups=_GROUPS,
            transactions=_TRANSACTIONS,
            tail_bytes=TAIL_BYTES,
            producer_ids=_PRODUCER_IDS,
        )

    async def compose(self, runtime: Runtime, name: str, stack: AsyncExitStack) -> ComposedBroker:
        ledgers = await self.ledger_client(runtime, name)
        stack.push_async_callback(ledgers.close)
        how = self.composition(name)
        composed = await compose_broker(runtime, ledgers.context.meta, ledgers, how, stack)
        if self.kafka_plan.pulsar:
            await composed.serve_pulsar(pulsar_settings(name))
        settings = KafkaSettings(host=name, port=PORT, limits=_LIMITS, sweep_interval_s=0.5, close_grace_s=1.0)
        await composed.serve_kafka(settings)
        return composed
