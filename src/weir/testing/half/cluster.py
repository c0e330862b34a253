"""Brokers over a simulated storage cluster, each with workers that use its topics."""

from dataclasses import replace

from weir.model.batch import HeldId
from weir.model.errors import InvariantError, WeirError
from weir.model.messages import Decision
from weir.model.policies import Policies, Retention
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.server.compose.composed import ComposedBroker, Composition
from weir.testing.broker.worked import WorkedBrokers
from weir.testing.half.final import read_back
from weir.testing.half.history import HalfHistory, HalfOpKind
from weir.testing.half.plan import HalfPlan
from weir.testing.half.workers import TOPICS, Worker
from weir.testing.world.world import World

_FEW_CHECKS, _MANY_CHECKS = 2, 100_000
#: Everything that was ever stored is read back in the end.
_FOREVER = Policies(retention=Retention(-1, -1))


class HalfCluster(WorkedBrokers):
    def __init__(self, world: World, plan: HalfPlan) -> None:
        super().__init__(world, plan, world.rng("workers"))
        self.half_plan = plan
        self.story = HalfHistory(lambda: world.now)
        self.story.note("plan", HalfOpKind.RULES, gives_up=plan.gives_up)
        #: What producers know besides the brokers, as a database would: ids, and how each is to be decided.
        self.ids: dict[int, HeldId] = {}
        self.fates: dict[int, Decision | None] = {}
        self.numbers: dict[str, int] = {}
        self.unread = dict.fromkeys(TOPICS)

    def _composition(self, name: str) -> Composition:
        plan = self.half_plan
        half = replace(plan.broker.half, checks=_FEW_CHECKS if plan.gives_up else _MANY_CHECKS)
        broker = replace(plan.broker, half=half)
        return replace(super()._composition(name), policies=_FOREVER, broker=broker, holding=plan.holding)

    async def _work(self, runtime: Runtime, name: str, composed: ComposedBroker, workers: TaskScope) -> None:
        if not self._calm:
            life = f"{name}.{self.story.step}"
            worker = Worker(life, composed.broker, self, clock=runtime.clock, rng=self._dice, tasks=workers)
            worker.start()
        await self._end_of(workers, runtime)
        await read_back(composed.broker, self, runtime.clock)
        self.emptied.set()

    async def _move(self, runtime: Runtime, composed: ComposedBroker) -> None:
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
