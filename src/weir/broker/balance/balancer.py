"""The leader's work: ask everyone's load, decide, have it done, and again after a while."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from weir.broker.balance.actions import Action, Move
from weir.broker.balance.control import BrokerControl
from weir.broker.balance.history import History
from weir.broker.balance.isolation import Isolation
from weir.broker.balance.limits import BalanceLimits
from weir.broker.balance.plan import plan_in_steps
from weir.broker.balance.usage import broker_usage
from weir.model.errors import WeirError
from weir.model.load import BrokerLoad
from weir.runtime.interfaces import Clock
from weir.runtime.turns import Turns

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """How often, and how much at the same time."""

    interval_s: float = 30.0
    #: Brokers that are asked, and bundles that are moved, at the same time.
    asked_at_once: int = 64
    moved_at_once: int = 16
    limits: BalanceLimits = field(default_factory=BalanceLimits)
    #: Whether this broker may become leader, and how long the others believe in one that they no longer hear.
    enabled: bool = True
    lease_s: float = 10.0
    #: What this broker may have in memory; 0: what its container or machine has.
    memory_bytes: int = 0


@dataclass(slots=True)
class BalanceMetrics:
    """Of this broker, while it is the leader."""

    rounds: int = 0
    #: By the reason, and splits as "split": those that were done, and those that failed.
    done: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    #: Brokers that did not answer in the last round.
    silent: int = 0
    #: Usage of the busiest broker and of the mean one in the last round.
    busiest: float = 0.0
    mean: float = 0.0
    #: Brokers that were being evened out then.
    uneven: int = 0


class Balancer:
    """One leader at a time runs this; it keeps nothing that another could not begin without."""

    def __init__(
        self,
        clock: Clock,
        control: BrokerControl,
        isolation: Isolation,
        settings: BalanceSettings | None = None,
        metrics: BalanceMetrics | None = None,
    ) -> None:
        self._clock = clock
        self._control = control
        self._isolation = isolation
        self._settings = settings or BalanceSettings()
        self.metrics = metrics or BalanceMetrics()

    async def lead(self) -> None:
        """Until cancelled. The first round comes after a pause: right after an election brokers may be on
        their way back, and what is measured may be of before."""
        history = History()
        while True:
            await self._clock.sleep(self._settings.interval_s)
            await self.round(history)

    async def round(self, history: History) -> list[Action]:
        """One round; what it asked for. If less than half of the brokers answer it is more likely that this one
        cannot reach them than that they are gone: nothing is moved then."""
        brokers = self._control.brokers()
        loads = await self.loads()
        self._note(loads, silent=len(brokers) - len(loads))
        if 2 * len(loads) < len(brokers):
            log.warning("only %d of %d brokers say how much work they have", len(loads), len(brokers))
            return []
        steps = plan_in_steps(loads, self._settings.limits, self._isolation, history, self._clock.monotonic())
        actions = await Turns(self._clock).through(steps)
        self.metrics.uneven = len(history.hot | history.cold)
        await _at_once(self._settings.moved_at_once, self._do, actions)
        return actions

    async def loads(self) -> list[BrokerLoad]:
        """Of those that answer, in the order of the brokers."""
        found: dict[str, BrokerLoad] = {}

        async def ask(broker_id: str) -> None:
            try:
                found[broker_id] = await self._control.load(broker_id)
            except WeirError as failure:
                log.warning("broker %s does not say how much work it has: %s", broker_id, failure)

        brokers = self._control.brokers()
        await _at_once(self._settings.asked_at_once, ask, brokers)
        return [found[broker_id] for broker_id in brokers if broker_id in found]

    async def _do(self, action: Action) -> None:
        what = action.reason.value if isinstance(action, Move) else "split"
        try:
            if isinstance(action, Move):
                await self._control.hand_over(action.source, action.bundle, action.target)
            else:
                await self._control.split(action.broker, action.bundle)
        except WeirError as failure:
            log.warning("%s failed: %s", action, failure)
            self.metrics.failed[what] = self.metrics.failed.get(what, 0) + 1
        else:
            log.info("%s is done", action)
            self.metrics.done[what] = self.metrics.done.get(what, 0) + 1

    def _note(self, loads: list[BrokerLoad], *, silent: int) -> None:
        usages = [broker_usage(load, self._settings.limits) for load in loads]
        self.metrics.rounds += 1
        self.metrics.silent = max(0, silent)
        self.metrics.busiest = max(usages, default=0.0)
        self.metrics.mean = sum(usages) / len(usages) if usages else 0.0


async def _at_once(most: int, work: Callable[[T], Awaitable[None]], items: Iterable[T]) -> None:
    """Do the work for each item, at most so many at the same time. Cancelled, it ends all of them."""
    queue = iter(items)

    async def worker() -> None:
        for item in queue:
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(most):
            group.create_task(worker())
