"""Brokers with workers whose topics are handed over and unloaded now and then."""

import asyncio

from weir.model.errors import InvariantError, WeirError
from weir.runtime.interfaces import Runtime
from weir.server.compose.composed import ComposedBroker
from weir.testing.broker.worked import WorkedBrokers, WorkPlan
from weir.testing.world.world import World


class MovedBrokers(WorkedBrokers):
    #: Topics that are.
    moved_names: tuple[str, ...] = ()

    def __init__(self, world: World, plan: WorkPlan, *, moves: bool) -> None:
        super().__init__(world, plan, world.rng("moves"))
        #: What the workers need is there.
        self.declared = asyncio.Event()
        self._moves = moves

    async def _move(self, runtime: Runtime, composed: ComposedBroker) -> None:
        """Whatever is loaded, while workers work."""
        while self._moves:
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
