"""Brokers over a simulated storage cluster, each with workers on one topic whose subscription retries."""

import asyncio

from weir.model.errors import InvariantError, WeirError
from weir.model.topics import DEFAULT_NAMESPACE, TopicName
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.server.compose.composed import ComposedBroker
from weir.testing.broker.moved import MovedBrokers
from weir.testing.broker.worked import PAUSE_S
from weir.testing.retries.history import RetryHistory
from weir.testing.retries.plan import RetryPlan
from weir.testing.retries.workers import LETTERS, TASKS, Worker, request_of
from weir.testing.world.world import World


class RetryCluster(MovedBrokers):
    moved_names = (TASKS, LETTERS)

    def __init__(self, world: World, plan: RetryPlan) -> None:
        super().__init__(world, plan, moves=plan.moves)
        self.retry_plan = plan
        self.retries = RetryHistory(lambda: world.now)
        self._numbers = [0]
        self._drained = asyncio.Event()

    async def _work(self, runtime: Runtime, name: str, composed: ComposedBroker, workers: TaskScope) -> None:
        await self._subscribe(runtime, composed)
        worker = Worker(
            f"{name}/{self.retries.step}",
            composed.broker,
            await composed.queues.open(DEFAULT_NAMESPACE),
            self.retry_plan,
            clock=runtime.clock,
            rng=self._dice,
            story=self.retries,
            numbers=self._numbers,
        )
        if not self._calm:
            workers.spawn(worker.publish(), "publish")
            workers.spawn(worker.consume(), "consume")
            workers.spawn(worker.redrive(), "redrive")
        await self._end_of(workers, runtime)
        while not self._drained.is_set():
            if await worker.drain_tasks():
                self._drained.set()
            await runtime.clock.sleep(PAUSE_S)
        if name == self.broker_names[0]:
            await worker.drain_letters()
            self.emptied.set()

    async def _subscribe(self, runtime: Runtime, composed: ComposedBroker) -> None:
        """Until somebody has made the subscription."""
        while not self.declared.is_set():
            try:
                topic = await composed.broker.load(TopicName.parse(TASKS))
                await (await topic.subscribe(request_of(self.retry_plan))).close()
                self.declared.set()
            except InvariantError:
                raise
            except WeirError:
                await runtime.clock.sleep(PAUSE_S)
