"""The leader's work: ask everyone's load, decide, have it done, and again after a while.

What the leader asks of brokers, itself among them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from weir.broker.api.cluster import Bundles
from weir.broker.balance.balance_plan import plan_in_steps
from weir.broker.balance.balance_round import Action, BalanceLimits, History, Isolation, Move, broker_usage
from weir.broker.balance.load_meter import LoadMeter
from weir.broker.peers.peer_calls import PeerCalls, PeerHandlers
from weir.model.cluster import BrokerLoad, BundleName
from weir.model.errors import WeirError
from weir.model.registry import BrokerInfo
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import Turns
from weir.wire.peer.calls import Done, HandOver, ReportLoad, SplitBundle


class BrokerControl(Protocol):
    """Each raises a WeirError if the broker cannot be asked or cannot do it."""

    def brokers(self) -> list[str]:
        """Those that are registered now, in a fixed order."""

    async def load(self, broker_id: str) -> BrokerLoad: ...

    async def hand_over(self, owner: str, bundle: str, to: str) -> None:
        """Done when the other broker has it."""

    async def split(self, owner: str, bundle: str) -> None: ...


class PeerControl:
    """Over the protocol among brokers."""

    def __init__(
        self, peers: PeerCalls, brokers: Callable[[], Iterable[BrokerInfo]], *, load_timeout_s: float = 5.0
    ) -> None:
        self._peers = peers
        self._brokers = brokers
        self._load_timeout_s = load_timeout_s

    def brokers(self) -> list[str]:
        return [broker.broker_id for broker in self._brokers()]

    async def load(self, broker_id: str) -> BrokerLoad:
        return await self._peers.ask(broker_id, ReportLoad(), timeout_s=self._load_timeout_s)

    async def hand_over(self, owner: str, bundle: str, to: str) -> None:
        await self._peers.ask(owner, HandOver(BundleName.parse(bundle), to))

    async def split(self, owner: str, bundle: str) -> None:
        await self._peers.ask(owner, SplitBundle(BundleName.parse(bundle)))


def answer_leader(handlers: PeerHandlers, bundles: Bundles, meter: LoadMeter) -> None:
    """Have this broker do what a leader asks of it."""

    async def report(_: ReportLoad) -> BrokerLoad:
        return meter.load()

    async def hand_over(request: HandOver) -> Done:
        await bundles.hand_over(request.bundle, request.to)
        return Done()

    async def split(request: SplitBundle) -> Done:
        await bundles.split(request.bundle, meter.split_point(request.bundle))
        return Done()

    handlers.on(ReportLoad, report)
    handlers.on(HandOver, hand_over)
    handlers.on(SplitBundle, split)


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
