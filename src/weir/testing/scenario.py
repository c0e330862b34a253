"""One seed, one run, in any scenario: build, let clients work under faults, heal, read everything back, check."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, TextIO, TypeVar

from weir.runtime.interfaces import Runtime
from weir.testing.checking import BUG, Checker, Violation, violations_of
from weir.testing.mutation import Mutations, narrowed
from weir.testing.operations import FINAL, Operation
from weir.testing.storage.cluster import Cluster
from weir.testing.storage.nemesis import Nemesis
from weir.testing.storage.plan import Plan
from weir.testing.world.listening import listening, quiet_collection
from weir.testing.world.world import World

#: Virtual seconds that no run may exceed; everything in it is bounded by less.
_MAX_SECONDS = 3600.0
_SET_UP_S = 60.0
_SET_UP_PAUSE_S = 0.1

PlanT = TypeVar("PlanT")
ClusterT = TypeVar("ClusterT", bound=Cluster)


@dataclass(frozen=True, slots=True)
class RunResult:
    """What came of a seed."""

    seed: int
    plan: Any
    ops: tuple[Any, ...]
    violations: tuple[Violation, ...]
    #: Of the whole trace: equal for equal seeds.
    digest: str
    virtual_s: float
    steps: int
    strikes: dict[str, int]

    @property
    def summary(self) -> str:
        return f"{self.plan}; {self.virtual_s:.1f} virtual seconds"


class SeedRun(ABC, Generic[PlanT, ClusterT]):
    """A cluster, those who use it, and the trouble they get; each scenario says what these are."""

    def __init__(self, world: World, plan: PlanT, storage: Plan, cluster: ClusterT, nemesis: Nemesis) -> None:
        self.world = world
        self.plan = plan
        self.storage = storage
        self.cluster = cluster
        self.nemesis = nemesis
        #: Found in passing, by others than the checkers.
        self.violations: list[Violation] = []

    @property
    @abstractmethod
    def ops(self) -> Sequence[Operation]:
        """The history."""

    async def play(self) -> None:
        """All of it."""
        for _ in range(self.storage.bookies):
            self.cluster.add_bookie()
        await self.set_up()
        self.add_clients()
        trouble = asyncio.get_running_loop().create_task(self.nemesis.run())
        await self.world.sleep(self.storage.duration_s)
        trouble.cancel()
        self.nemesis.heal()
        self.cluster.stop_clients()
        await self.world.node(FINAL).start(self.final)

    async def set_up(self) -> None:
        """Whatever must be there before the clients come, and before any trouble."""

    @abstractmethod
    def add_clients(self) -> None: ...

    @abstractmethod
    async def final(self, runtime: Runtime) -> None:
        """Read everything back, with everything healed."""

    async def operate(self, *steps: Callable[[Runtime], Awaitable[bool]]) -> None:
        """Take steps, one after the other, on a node of an operator's: each again until it answers True."""

        async def main(runtime: Runtime) -> None:
            async with asyncio.timeout(_SET_UP_S):
                for step in steps:
                    while not await step(runtime):
                        await runtime.clock.sleep(_SET_UP_PAUSE_S)

        await self.world.node("operator").start(main)

    def client(self, name: str, work: Callable[[Runtime, Random], Awaitable[None]]) -> None:
        """Add a client with dice of its own; one that has done its work waits for the end of the run."""
        rng = self.world.rng(f"client/{name}")

        async def main(runtime: Runtime) -> None:
            await work(runtime, rng)
            await asyncio.get_running_loop().create_future()

        self.cluster.add_client(name, main)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of run: what a seed decides, what happens then, and what is promised of it."""

    name: str
    #: Where the dice of its plans begin.
    dice: str
    make_plan: Callable[[Random], Any]
    run_of: Callable[[World, Any], SeedRun[Any, Any]]
    checkers: tuple[Checker, ...]
    mutations: Mutations
    #: Those of its checkers whose mutations another scenario has.
    shown_elsewhere: tuple[Checker, ...] = ()
    #: A usual run has 60,000 steps.
    max_steps: int = 2_000_000
    #: With a promise broken, the longest that found something had 150,000; many more are a loop without end.
    max_steps_broken: int = 400_000
    #: What holds around a run of a plan.
    around: Callable[[Any], AbstractContextManager[Any]] = lambda plan: nullcontext()

    def run(
        self, seed: int, *, mutation: str | None = None, innocent: bool = False, trace: TextIO | None = None
    ) -> RunResult:
        """Run a seed, with a promise broken on purpose if a mutation is named: then its plan is one in which that
        matters. An `innocent` run has that plan, but breaks nothing."""
        plan = self.make_plan(Random(f"{self.dice}/{seed}"))
        if mutation is not None:
            plan = narrowed(plan, self.mutations[mutation].focus)
        with quiet_collection(), ExitStack() as stack:
            if mutation is not None and not innocent:
                stack.enter_context(self.mutations[mutation].apply())
            stack.enter_context(self.around(plan))
            broken = mutation is not None and not innocent
            return self._run(seed, plan, trace, stack, self.max_steps_broken if broken else self.max_steps)

    def _run(self, seed: int, plan: Any, trace: TextIO | None, stack: ExitStack, max_steps: int) -> RunResult:
        world = World(
            seed,
            keep_trace=0 if trace is None else None,
            strict=False,
            max_seconds=_MAX_SECONDS,
            max_steps=max_steps,
        )
        bugs = stack.enter_context(listening(world, trace))
        stack.enter_context(world)
        run = self.run_of(world, plan)
        world.run(run.play())
        bugs += [*run.cluster.bugs, *world.unhandled]
        ops = tuple(run.ops)
        violations = (
            *violations_of(ops, self.checkers),
            *run.violations,
            *(Violation(BUG, f"{type(bug).__name__}: {bug}", ()) for bug in bugs),
        )
        strikes = {fault.value: count for fault, count in run.nemesis.strikes.items()}
        return RunResult(seed, plan, ops, violations, world.trace.digest(), world.now, world.loop.steps, strikes)
