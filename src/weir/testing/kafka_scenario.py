"""One seed, one run of Kafka's clients on a broker over bookies: build, work under faults, heal, check."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from typing import TextIO
from unittest.mock import patch

from weir.gateway.kafka.errors import Code
from weir.model.errors import InvariantError, WeirError
from weir.runtime.interfaces import Runtime
from weir.testing import kafka_calls as calls
from weir.testing.cluster import Main
from weir.testing.history import FINAL
from weir.testing.kafka_checkers import KafkaViolation, check_kafka_history
from weir.testing.kafka_client import KafkaLink, KafkaRefusedError
from weir.testing.kafka_cluster import KafkaCluster
from weir.testing.kafka_final import KafkaFinal
from weir.testing.kafka_follower import FOLLOWER, Follower
from weir.testing.kafka_history import KafkaOp
from weir.testing.kafka_members import READERS, Member, Processor
from weir.testing.kafka_mutations import KAFKA_MUTATIONS
from weir.testing.kafka_nemesis import KafkaNemesis
from weir.testing.kafka_plan import KafkaPlan, make_kafka_plan
from weir.testing.kafka_pulsar import PulsarReader
from weir.testing.kafka_transactor import Pipeline, TransactionalWriter
from weir.testing.kafka_truth import PIPE
from weir.testing.kafka_workload import (
    IN,
    OUT,
    IdempotentProducer,
    KafkaShared,
    PlainProducer,
    Reader,
    Todo,
    Who,
    Worker,
)
from weir.testing.scenario import listening, quiet_collection
from weir.testing.world import World

_BUG = "the code keeps the promises that it makes to itself"
_MAX_SECONDS = 3600.0
#: A usual run has 60,000 steps.
_MAX_STEPS = 2_000_000
_SET_UP_S = 60.0


@dataclass(frozen=True, slots=True)
class KafkaRunResult:
    """What came of a seed."""

    seed: int
    plan: KafkaPlan
    ops: tuple[KafkaOp, ...]
    violations: tuple[KafkaViolation, ...]
    #: Of the whole trace: equal for equal seeds.
    digest: str
    virtual_s: float
    steps: int
    strikes: dict[str, int]

    @property
    def summary(self) -> str:
        return f"{self.plan}; {self.virtual_s:.1f} virtual seconds"


def run_kafka_seed(
    seed: int, *, mutation: str | None = None, innocent: bool = False, trace: TextIO | None = None
) -> KafkaRunResult:
    """Run the Kafka scenario of a seed, with a promise broken on purpose if a mutation is named: then its plan is
    one in which that matters. An `innocent` run has that plan, but breaks nothing."""
    plan = make_kafka_plan(Random(f"kafka/{seed}"))
    if mutation is not None:
        plan = KAFKA_MUTATIONS[mutation].narrow(plan)
    with quiet_collection():
        return _run(seed, plan, None if innocent else mutation, trace)


def _run(seed: int, plan: KafkaPlan, mutation: str | None, trace: TextIO | None) -> KafkaRunResult:
    with ExitStack() as stack:
        if mutation is not None:
            stack.enter_context(KAFKA_MUTATIONS[mutation].apply())
        stack.enter_context(patch("weir.broker.transactions.MAX_EPOCH", plan.last_epoch))
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
            *check_kafka_history(ops),
            *(KafkaViolation(_BUG, f"{type(bug).__name__}: {bug}", ()) for bug in bugs),
        )
        strikes = {fault.value: count for fault, count in run.nemesis.strikes.items()}
        return KafkaRunResult(
            seed, plan, ops, violations, world.trace.digest(), world.now, world.loop.steps, strikes
        )


class _Run:
    def __init__(self, world: World, plan: KafkaPlan) -> None:
        self.world = world
        self.plan = plan
        self.cluster = KafkaCluster(world, plan)
        self.shared = KafkaShared(self.cluster)
        self.nemesis = KafkaNemesis(self.cluster, self.shared, world.rng("nemesis"))

    async def scenario(self) -> None:
        for _ in range(self.plan.storage.bookies):
            self.cluster.add_bookie()
        self.cluster.add_brokers()
        await self.world.node("operator").start(self._set_up)
        self._add_clients()
        trouble = asyncio.get_running_loop().create_task(self.nemesis.run())
        await self.world.sleep(self.plan.storage.duration_s)
        trouble.cancel()
        self.nemesis.heal()
        self.cluster.stop_clients()
        await self.world.node(FINAL).start(self._final)

    async def _set_up(self, runtime: Runtime) -> None:
        async with asyncio.timeout(_SET_UP_S):
            for topic, partitions in ((IN, self.plan.in_parts), (OUT, self.plan.out_parts)):
                while not await self._made(runtime, topic, partitions):
                    await runtime.clock.sleep(0.1)

    async def _made(self, runtime: Runtime, topic: str, partitions: int) -> bool:
        try:
            link = await KafkaLink.open(runtime, "operator", self.cluster.active)
            try:
                await calls.create_topic(link, topic, partitions)
            finally:
                await link.close()
        except InvariantError:
            raise
        except KafkaRefusedError as refused:
            return refused.code is Code.TOPIC_ALREADY_EXISTS
        except WeirError:
            return False
        return True

    def _add_clients(self) -> None:
        plan = self.plan
        committed = self.world.rng("isolation").random() < 0.5
        self._add("p", plan.plain, PlainProducer)
        self._add("i", plan.idempotent, IdempotentProducer)
        self._add("w", plan.writers, lambda who: TransactionalWriter(who, "w" if plan.instances > 1 else who.name))
        self._add("t", plan.instances * plan.pipelines, lambda who: Pipeline(who, PIPE))
        self._add("c", plan.processors, lambda who: Processor(who, who.name))
        self._add("m", plan.members, lambda who: Member(who, committed=committed))
        self._add("r", plan.readers, Reader)
        self._add("u", int(plan.pulsar), PulsarReader)
        self._add("f", int(plan.follows), Follower)
        self.cluster.staying = [FOLLOWER]

    def _add(self, letter: str, count: int, make: Callable[[Who], Worker]) -> None:
        for number in range(count):
            name = f"{letter}{number}"
            self.cluster.add_client(name, self._client(name, make))

    def _client(self, name: str, make: Callable[[Who], Worker]) -> Main:
        rng, todo = self.world.rng(f"client/{name}"), Todo(self.plan.messages)

        async def work(runtime: Runtime) -> None:
            await make(Who(name, runtime, rng, self.shared, todo)).run()
            await asyncio.get_running_loop().create_future()  # done, until the end of the run

        return work

    async def _final(self, runtime: Runtime) -> None:
        pipes = bool(self.plan.pipelines or self.plan.processors)
        groups = [name for name, used in ((PIPE, pipes), (READERS, bool(self.plan.members))) if used]
        await KafkaFinal(runtime, self.shared, groups).run()
