"""The balancer: the leader collects the load of all brokers, plans a round, and has the brokers execute it."""

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
    """Calls of the leader to brokers, including itself. Each raises a WeirError if the broker is unreachable or
    fails."""

    def brokers(self) -> list[str]:
        """The registered brokers, in a fixed order."""

    async def load(self, broker_id: str) -> BrokerLoad: ...

    async def hand_over(self, owner: str, bundle: str, to: str) -> None:
        """Returns when the other broker owns the bundle."""

    async def split(self, owner: str, bundle: str) -> None: ...


class PeerControl:
    """Fills `BrokerControl` with calls between brokers."""

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
    """Register the handlers for the leader's calls."""

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
    """Interval, concurrency and limits of balance rounds."""

    interval_s: float = 30.0
    #: Concurrent load requests, and concurrent moves.
    asked_at_once: int = 64
    moved_at_once: int = 16
    limits: BalanceLimits = field(default_factory=BalanceLimits)
    #: Whether this broker may become leader; and the TTL of the leader's lease.
    enabled: bool = True
    lease_s: float = 10.0
    #: Memory available to this broker; 0: that of its container or machine.
    memory_bytes: int = 0


@dataclass(slots=True)
class BalanceMetrics:
    """Metrics of this broker while it is the leader."""

    rounds: int = 0
    #: Successful and failed actions, by the reason of a move, or "split".
    done: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    #: Brokers without an answer in the last round.
    silent: int = 0
    #: Usage of the busiest broker, and the mean usage, in the last round.
    busiest: float = 0.0
    mean: float = 0.0
    #: Brokers outside of their thresholds in the last round.
    uneven: int = 0


class Balancer:
    """Runs on the leader; it has no state that a new leader needs."""

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
        """Run rounds until cancelled. The first round follows a pause: right after an election, brokers may be
        restarting, and measurements may be outdated."""
        history = History()
        while True:
            await self._clock.sleep(self._settings.interval_s)
            await self.round(history)

    async def round(self, history: History) -> list[Action]:
        """Run one round; return its actions. If less than half of the brokers answer, this broker is probably
        partitioned from them: it moves nothing then."""
        brokers = self._control.brokers()
        loads = await self.loads()
        self._note(loads, silent=len(brokers) - len(loads))
        if 2 * len(loads) < len(brokers):
            log.warning("only %d of %d brokers say how much work they have", len(loads), len(brokers))
            return []
        steps = plan_in_steps(loads, self._settings.limits, self._isolation, history, self._clock.monotonic())
        actions = await Turns(self._clock).through(steps)
        self.metrics.uneven = len(history.hot | history.cold)
        await _run_concurrently(self._settings.moved_at_once, self._do, actions)
        return actions

    async def loads(self) -> list[BrokerLoad]:
        """The loads of the brokers that answer, in the order of the brokers."""
        found: dict[str, BrokerLoad] = {}

        async def ask(broker_id: str) -> None:
            try:
                found[broker_id] = await self._control.load(broker_id)
            except WeirError as failure:
                log.warning("broker %s does not say how much work it has: %s", broker_id, failure)

        brokers = self._control.brokers()
        await _run_concurrently(self._settings.asked_at_once, ask, brokers)
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


async def _run_concurrently(most: int, work: Callable[[T], Awaitable[None]], items: Iterable[T]) -> None:
    """Run the work for each item with bounded concurrency. Cancellation cancels all of them."""
    queue = iter(items)

    async def worker() -> None:
        for item in queue:
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(most):
            group.create_task(worker())
