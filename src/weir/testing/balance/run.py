"""One run of the balance scenario: rounds of the real leader, losses, joins and a drain, in virtual time."""

import asyncio
from random import Random

from weir.broker.balance.balance_round import History, Move
from weir.broker.balance.balancer import Balancer
from weir.runtime.interfaces import Runtime
from weir.testing.balance.history import BalanceHistory, Moved, Sampled
from weir.testing.balance.model import ModelCluster
from weir.testing.balance.plan import BalancePlan
from weir.testing.world.world import World, simulate

_STEP_S = 30.0


def run_balance(plan: BalancePlan, seed: int) -> BalanceHistory:
    async def scenario(world: World) -> BalanceHistory:
        async def main(runtime: Runtime) -> BalanceHistory:
            return await _Run(plan, runtime, world.rng("balance")).play()

        return await world.node("leader").start(main)

    return simulate(seed, scenario, max_steps=10**9, max_seconds=plan.end_s + 60)


class _Run:
    def __init__(self, plan: BalancePlan, runtime: Runtime, dice: Random) -> None:
        self._plan = plan
        self._clock = runtime.clock
        self._began = runtime.clock.monotonic()
        self._cluster = ModelCluster(plan, runtime.clock, dice)
        self._balancer = Balancer(runtime.clock, self._cluster, self._cluster.isolation, plan.settings)
        self._moves: list[Moved] = []
        self._samples: list[Sampled] = []
        self._history = History()
        self._term = 1

    @property
    def _now(self) -> float:
        return self._clock.monotonic() - self._began

    async def play(self) -> BalanceHistory:
        plan = self._plan
        leading = asyncio.get_running_loop().create_task(self._lead())
        unserved_s = 0.0
        for at, event in (
            (plan.lost_s, self._lose),
            (plan.joined_s, self._join),
            (plan.drained_s, self._drain),
            (plan.end_s, None),
        ):
            await self._pass_until(at)
            if event is not None:
                unserved_s += await event()
        leading.cancel()
        cluster = self._cluster
        return BalanceHistory(
            plan, tuple(self._moves), tuple(self._samples), cluster.splits, cluster.refused, unserved_s
        )

    async def _pass_until(self, at: float) -> None:
        while self._now < at:
            self._cluster.tick(self._now)
            self._samples.append(self._cluster.sample(self._now))
            await self._clock.sleep(min(_STEP_S, at - self._now))

    async def _lead(self) -> None:
        """As `Balancer.lead`, with a note of what was decided."""
        while True:
            await self._clock.sleep(self._plan.settings.interval_s)
            at, term = self._now, self._term
            live = self._cluster.live()
            for action in await self._balancer.round(self._history):
                if isinstance(action, Move):
                    namespace = action.bundle.rpartition("/")[0]
                    allowed = action.target in self._cluster.isolation.allowed(namespace, live)
                    self._moves.append(
                        Moved(
                            at,
                            term,
                            action.bundle,
                            action.source,
                            action.target,
                            action.reason,
                            action.usage,
                            allowed or action.target not in live,
                        )
                    )

    # --- events -------------------------------------------------------------------------------------------------

    async def _lose(self) -> float:
        """Brokers die, the leader among them: the next one knows nothing of what was done before."""
        orphans = self._cluster.lose(int(self._plan.lost_share * self._plan.brokers) or 1)
        self._history, self._term = History(), self._term + 1
        await self._clock.sleep(self._plan.lease_s)
        self._cluster.take_over(orphans)
        return self._plan.lease_s

    async def _join(self) -> float:
        self._cluster.join(int(self._plan.lost_share * self._plan.brokers) or 1)
        return 0.0

    async def _drain(self) -> float:
        self._cluster.drain()
        return 0.0
