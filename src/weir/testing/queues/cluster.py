"""Brokers over a simulated storage cluster, each with workers that publish to all queues and consume them.

Brokers speak with each other over the peer protocol: a worker uses queues of other brokers as its own.
"""

from weir.model.errors import InvariantError, WeirError
from weir.model.topics import DEFAULT_NAMESPACE
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.server.compose.composed import ComposedBroker
from weir.testing.broker.moved import MovedBrokers
from weir.testing.broker.worked import PAUSE_S
from weir.testing.queues.history import QueueHistory
from weir.testing.queues.plan import QueuePlan
from weir.testing.queues.workers import QUEUES, ROLE, TIMED, WORK, Worker, declarations, empty_all
from weir.testing.world.world import World


class QueueCluster(MovedBrokers):
    moved_names = QUEUES

    def __init__(self, world: World, plan: QueuePlan) -> None:
        super().__init__(world, plan, moves=plan.moves)
        self.queue_plan = plan
        self.story = QueueHistory(lambda: world.now)
        #: The last number of each queue's messages, over all publishers.
        self.numbers: dict[str, int] = {}

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
        await self._end_of(workers, runtime)
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
                    await runtime.clock.sleep(PAUSE_S)
        self.declared.set()
