"""One seed, one run: build a cluster, let clients work under faults, heal, read everything back, check."""

import asyncio
import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import TextIO

from weir.ledger.client import LedgerClient
from weir.model.errors import InvariantError, WeirError
from weir.runtime.interfaces import Runtime
from weir.testing.checkers import Violation, check_history
from weir.testing.cluster import Cluster, Main
from weir.testing.final import FinalCheck
from weir.testing.history import FINAL, Op
from weir.testing.mutations import MUTATIONS
from weir.testing.nemesis import Nemesis
from weir.testing.plan import Plan, make_plan
from weir.testing.workload import Reader, Recoverer, Shared, Writer
from weir.testing.world import World

_BUG = "the code keeps the promises that it makes to itself"
#: Virtual seconds that no run may exceed; everything in it is bounded by less.
_MAX_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class RunResult:
    """What came of a seed."""

    seed: int
    plan: Plan
    ops: tuple[Op, ...]
    violations: tuple[Violation, ...]
    #: Of the whole trace: equal for equal seeds.
    digest: str
    virtual_s: float
    steps: int
    strikes: dict[str, int]

    @property
    def summary(self) -> str:
        return f"{self.plan}; {self.virtual_s:.1f} virtual seconds"


def run_seed(
    seed: int, *, mutation: str | None = None, innocent: bool = False, trace: TextIO | None = None
) -> RunResult:
    """Run the cluster scenario of a seed, with a promise broken on purpose if a mutation is named: then its plan
    is one in which that matters. An `innocent` run has that plan, but breaks nothing."""
    plan = make_plan(Random(f"plan/{seed}"))
    if mutation is not None:
        plan = replace(plan, **MUTATIONS[mutation].focus)
    with quiet_collection():
        return _run(seed, plan, None if innocent else mutation, trace)


def _run(seed: int, plan: Plan, mutation: str | None, trace: TextIO | None) -> RunResult:
    with ExitStack() as stack:
        if mutation is not None:
            stack.enter_context(MUTATIONS[mutation].apply())
        keep_trace = 0 if trace is None else None
        world = World(seed, keep_trace=keep_trace, strict=False, max_seconds=_MAX_SECONDS)
        bugs = stack.enter_context(listening(world, trace))
        stack.enter_context(world)
        run = _Run(world, plan)
        world.run(run.scenario())
        bugs += [*run.cluster.bugs, *world.unhandled]
        ops = run.cluster.history.ops()
        violations = [
            *check_history(ops),
            *run.violations,
            *(Violation(_BUG, f"{type(bug).__name__}: {bug}", ()) for bug in bugs),
        ]
        strikes = {fault.value: count for fault, count in run.nemesis.strikes.items()}
        return RunResult(
            seed, plan, ops, tuple(violations), world.trace.digest(), world.now, world.loop.steps, strikes
        )


class _Run:
    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.cluster = Cluster(world, plan)
        self.shared = Shared(self.cluster.history, plan)
        self.nemesis = Nemesis(self.cluster, plan, self.shared, world.rng("nemesis"))
        self.violations: list[Violation] = []

    async def scenario(self) -> None:
        for _ in range(self.plan.bookies):
            self.cluster.add_bookie()
        self._add_clients()
        trouble = asyncio.get_running_loop().create_task(self.nemesis.run())
        await self.world.sleep(self.plan.duration_s)
        trouble.cancel()
        self.nemesis.heal()
        self.cluster.stop_clients()
        await self.world.node(FINAL).start(self._final)

    def _add_clients(self) -> None:
        for i in range(self.plan.writers):
            self.cluster.add_client(f"w{i}", self._writer(f"w{i}"))
        for i in range(self.plan.readers):
            self.cluster.add_client(f"r{i}", self._reader(f"r{i}"))
        for i in range(self.plan.recoverers):
            self.cluster.add_client(f"c{i}", self._recoverer(f"c{i}"))
        if self.plan.repair:
            self.cluster.add_repair()

    def _writer(self, name: str) -> Main:
        left = [self.plan.appends // self.plan.writers]
        rng = self.world.rng(f"client/{name}")

        async def write(runtime: Runtime) -> None:
            client = await self.cluster.ledger_client(runtime, name)
            await Writer(name, client, runtime.clock, rng, self.shared).run(left)
            await asyncio.get_running_loop().create_future()  # done, until the end of the run

        return write

    def _reader(self, name: str) -> Main:
        rng = self.world.rng(f"client/{name}")

        async def read(runtime: Runtime) -> None:
            client = await self.cluster.ledger_client(runtime, name)
            await Reader(name, client, runtime.clock, rng, self.shared).run()

        return read

    def _recoverer(self, name: str) -> Main:
        rng = self.world.rng(f"client/{name}")

        async def recover(runtime: Runtime) -> None:
            client = await self.cluster.ledger_client(runtime, name)
            await Recoverer(name, client, runtime.clock, rng, self.shared).run()

        return recover

    async def _final(self, runtime: Runtime) -> None:
        client: LedgerClient = await self.cluster.ledger_client(runtime, FINAL)
        check = FinalCheck(self.cluster, client, self.shared.ledgers)
        try:
            await check.run()
        finally:
            self.violations += check.violations


@contextmanager
def quiet_collection() -> Iterator[None]:
    """Collect what is left of a run here and now, and let coroutines that died half-way go without a word: one
    that awaits in a `finally` block complains of its burial."""
    hook = sys.unraisablehook

    def not_of_burials(unraisable: "sys.UnraisableHookArgs") -> None:
        if "coroutine ignored GeneratorExit" not in str(unraisable.exc_value):
            hook(unraisable)

    sys.unraisablehook = not_of_burials
    try:
        yield
    finally:
        gc.collect()
        sys.unraisablehook = hook


class _Listener(logging.Handler):
    """Hears of failures in the background: those that no fault explains are bugs."""

    def __init__(self, world: World, *, tell: bool) -> None:
        super().__init__()
        self._world = world
        self._tell = tell
        self.bugs: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        failure = record.exc_info[1] if record.exc_info else None
        if failure is not None and (not isinstance(failure, WeirError) or isinstance(failure, InvariantError)):
            self.bugs.append(failure)
        if self._tell:
            self._world.note("log", f"{record.name} {record.getMessage()}")


@contextmanager
def listening(world: World, trace: TextIO | None) -> Iterator[list[BaseException]]:
    """Collect the bugs that the product logs; with a trace, print it in the end, the product's log within."""
    logger = logging.getLogger("weir")
    before = (logger.handlers[:], logger.propagate, logger.level)
    listener = _Listener(world, tell=trace is not None)
    logger.handlers, logger.propagate = [listener], False
    logger.setLevel(logging.ERROR if trace is None else logging.DEBUG)
    try:
        yield listener.bugs
    finally:
        if trace is not None:
            trace.writelines(f"{line}\n" for line in world.trace.lines())
        logger.handlers, logger.propagate = before[:2]
        logger.setLevel(before[2])
