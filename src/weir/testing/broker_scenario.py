"""One seed, one run of brokers over bookies: build, work under faults, heal, read everything back, check."""

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from typing import TextIO

from weir.client.pulsar import PulsarClient
from weir.model.errors import InvariantError, WeirError
from weir.runtime.interfaces import Runtime
from weir.testing.broker_checkers import Violation, check_broker_history
from weir.testing.broker_cluster import BrokerCluster
from weir.testing.broker_final import FinalReader
from weir.testing.broker_history import BrokerOp
from weir.testing.broker_mutations import BROKER_MUTATIONS
from weir.testing.broker_nemesis import BrokerNemesis
from weir.testing.broker_plan import BrokerPlan, make_broker_plan
from weir.testing.broker_workload import (
    CLIENT,
    BrokerShared,
    Errand,
    Handle,
    Receiver,
    Sender,
    full_name,
    make_errand,
)
from weir.testing.cluster import Main
from weir.testing.history import FINAL
from weir.testing.scenario import listening, quiet_collection
from weir.testing.world import World

_BUG = "the code keeps the promises that it makes to itself"
_MAX_SECONDS = 3600.0
#: A usual run has 50,000 steps.
_MAX_STEPS = 1_500_000
_SET_UP_S = 60.0


@dataclass(frozen=True, slots=True)
class BrokerRunResult:
    """What came of a seed."""

    seed: int
    plan: BrokerPlan
    ops: tuple[BrokerOp, ...]
    violations: tuple[Violation, ...]
    #: Of the whole trace: equal for equal seeds.
    digest: str
    virtual_s: float
    steps: int
    strikes: dict[str, int]

    @property
    def summary(self) -> str:
        return f"{self.plan}; {self.virtual_s:.1f} virtual seconds"


def run_broker_seed(
    seed: int, *, mutation: str | None = None, innocent: bool = False, trace: TextIO | None = None
) -> BrokerRunResult:
    """Run the broker scenario of a seed, with a promise broken on purpose if a mutation is named: then its plan is
    one in which that matters. An `innocent` run has that plan, but breaks nothing."""
    plan = make_broker_plan(Random(f"broker/{seed}"))
    if mutation is not None:
        plan = BROKER_MUTATIONS[mutation].narrow(plan)
    with quiet_collection():
        return _run(seed, plan, None if innocent else mutation, trace)


def _run(seed: int, plan: BrokerPlan, mutation: str | None, trace: TextIO | None) -> BrokerRunResult:
    with ExitStack() as stack:
        if mutation is not None:
            stack.enter_context(BROKER_MUTATIONS[mutation].apply())
        world = World(
            seed,
            keep_trace=0 if trace is None else None,
            strict=False,
            max_seconds=_MAX_SECONDS,
            max_steps=_MAX_STEPS,
        )
        bugs = stack.enter_context(listening(world, trace))
        stack.enter_context(world)
        run = _Run(world, plan)
        world.run(run.scenario())
        bugs += [*run.cluster.bugs, *world.unhandled]
        ops = run.cluster.story.ops()
        violations = (
            *check_broker_history(ops),
            *run.violations,
            *(Violation(_BUG, f"{type(bug).__name__}: {bug}", ()) for bug in bugs),
        )
        strikes = {fault.value: count for fault, count in run.nemesis.strikes.items()}
        return BrokerRunResult(
            seed, plan, ops, violations, world.trace.digest(), world.now, world.loop.steps, strikes
        )


class _Run:
    def __init__(self, world: World, plan: BrokerPlan) -> None:
        self.world = world
        self.plan = plan
        self.cluster = BrokerCluster(world, plan)
        self.shared = BrokerShared(self.cluster)
        self.nemesis = BrokerNemesis(self.cluster, self.shared, world.rng("nemesis"))
        self.violations: list[Violation] = []
        self._topics = [f"t{number}" for number in range(plan.topics)]

    async def scenario(self) -> None:
        for _ in range(self.plan.storage.bookies):
            self.cluster.add_bookie()
        for _ in range(self.plan.brokers):
            self.cluster.add_broker()
        await self.world.node("operator").start(self._set_up)
        self._add_clients()
        trouble = asyncio.get_running_loop().create_task(self.nemesis.run())
        await self.world.sleep(self.plan.storage.duration_s)
        trouble.cancel()
        self.nemesis.heal()
        self.cluster.stop_clients()
        await self.world.node(FINAL).start(self._final)

    async def _set_up(self, runtime: Runtime) -> None:
        """Make every subscription before anything is published, so that each is owed everything."""
        rng = self.world.rng("operator")
        async with asyncio.timeout(_SET_UP_S):
            for topic in self._topics:
                for subscription in self.plan.subscriptions:
                    while not await self._made(runtime, rng, topic, subscription):
                        await runtime.clock.sleep(0.1)

    async def _made(self, runtime: Runtime, rng: Random, topic: str, subscription: str) -> bool:
        try:
            async with PulsarClient(runtime, self.shared.some_url(rng), CLIENT) as client:
                handle = Handle(self.shared.next_handle("operator"), topic, subscription, self.shared)
                await handle.open(await client._owner(full_name(topic)), queue=1, label="operator")
                if handle.consumer is not None:
                    await handle.consumer.close()
        except InvariantError:
            raise
        except WeirError:
            return False
        return True

    def _add_clients(self) -> None:
        for topic in self._topics:
            for number in range(self.plan.producers):
                name = f"p{number}{topic}"
                errand = make_errand(name, topic, self.world.rng(f"errand/{name}"), self.shared)
                self.cluster.add_client(name, self._producer(errand))
            for subscription in self.plan.subscriptions:
                for number in range(self.plan.consumers):
                    name = f"{subscription[0]}{number}{topic}"
                    self.cluster.add_client(name, self._consumer(name, topic, subscription))

    def _producer(self, errand: Errand) -> Main:
        rng = self.world.rng(f"client/{errand.name}")

        async def produce(runtime: Runtime) -> None:
            await Sender(errand, runtime, rng, self.shared).run()
            await asyncio.get_running_loop().create_future()  # done, until the end of the run

        return produce

    def _consumer(self, name: str, topic: str, subscription: str) -> Main:
        rng = self.world.rng(f"client/{name}")

        async def consume(runtime: Runtime) -> None:
            await Receiver(name, topic, subscription, runtime, rng=rng, shared=self.shared).run()

        return consume

    async def _final(self, runtime: Runtime) -> None:
        final = FinalReader(runtime, self.shared, dict.fromkeys(self._topics, self.plan.subscriptions))
        try:
            await final.run()
        finally:
            self.violations += final.violations
