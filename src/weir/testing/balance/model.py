"""A model of brokers that hold bundles whose load is skewed and moves; fills `BrokerControl`."""

from collections.abc import Set
from math import sin, tau
from random import Random

from weir.model.cluster import BrokerLoad, BundleLoad
from weir.model.errors import NotOwnerError, PeerUnavailableError
from weir.runtime.interfaces import Clock
from weir.testing.balance.history import Sampled
from weir.testing.balance.plan import BalancePlan

#: What a broker can do, in messages per second.
_CAPACITY = 100_000.0
_HAND_OVER_S = 0.2
#: A topic has at most about this share of a broker: what one topic needs cannot be shared out.
_TOPIC_USAGE = 0.05
#: Brokers that are less used than this in the mean have room for what one has too much of.
_ROOMY = 0.8


class ModelBundle:
    __slots__ = ("name", "namespace", "owner", "topics", "usage", "weight")

    def __init__(self, name: str, namespace: int, weight: float, topics: int) -> None:
        self.name = name
        self.namespace = namespace
        self.weight = weight
        self.topics = topics
        self.usage = weight
        self.owner = ""


class BoundNamespaces:
    """Fills `Isolation`: some namespaces are bound to a group of brokers each, and fall back to all."""

    def __init__(self, groups: dict[str, frozenset[str]]) -> None:
        self._groups = groups
        self._live: frozenset[str] = frozenset()
        self._sets: dict[frozenset[str], frozenset[str]] = {}

    def allowed(self, namespace: str, live: frozenset[str]) -> Set[str]:
        group = self._groups.get(namespace)
        if group is None:
            return live
        if live != self._live:
            self._live, self._sets = live, {}
        found = self._sets.get(group)
        if found is None:
            found = self._sets[group] = (group & live) or live
        return found


class ModelCluster:
    """Everything that a leader could ask about, and what happens to it."""

    def __init__(self, plan: BalancePlan, clock: Clock, dice: Random) -> None:
        self._plan = plan
        self._clock = clock
        self._dice = dice
        self._count = plan.brokers
        self.held: dict[str, dict[str, ModelBundle]] = {f"b{n:04}": {} for n in range(plan.brokers)}
        self.draining: set[str] = set()
        self._live: frozenset[str] | None = None
        self.refused = self.splits = 0
        self.isolation = BoundNamespaces(self._bindings())
        self._phases = [dice.random() for _ in range(plan.namespaces)]
        self._bursts: dict[int, float] = {}
        self._noise: dict[str, float] = {}
        bundles = self._make_bundles()
        self.bundles = {bundle.name: bundle for bundle in bundles}
        self.take_over(bundles)
        self.tick(0.0)

    def _bindings(self) -> dict[str, frozenset[str]]:
        plan, brokers = self._plan, list(self.held)
        size = max(2, int(plan.bound * plan.brokers / plan.groups))
        groups = [frozenset(brokers[n * size : (n + 1) * size]) for n in range(plan.groups)]
        return {f"t/n{n}": groups[n % plan.groups] for n in range(int(plan.bound * plan.namespaces))}

    def _make_bundles(self) -> list[ModelBundle]:
        """A bundle's topics are as many as its load needs at least, so that it can be split as far as it must."""
        plan, dice = self._plan, self._dice
        weights = [1 / (n + 1) ** plan.skew for n in range(plan.bundles)]
        unit = plan.mean_usage * plan.brokers / sum(weights)
        dice.shuffle(weights)
        return [
            ModelBundle(
                f"t/n{n % plan.namespaces}/{n}",
                n % plan.namespaces,
                weight * unit,
                1 + dice.randrange(8) + int(plan.burst * weight * unit / _TOPIC_USAGE),
            )
            for n, weight in enumerate(weights)
        ]

    # --- what the leader asks -----------------------------------------------------------------------------------

    def brokers(self) -> list[str]:
        return list(self.held)

    async def load(self, broker_id: str) -> BrokerLoad:
        held = self.held.get(broker_id)
        if held is None:
            raise PeerUnavailableError(f"{broker_id} is gone", sent=False)
        demand = sum(bundle.usage for bundle in held.values())
        served = _CAPACITY / max(1.0, demand)
        bundles = tuple(
            BundleLoad(bundle.name, bundle.usage * served, 0.0, 0.0, 0.0, bundle.topics)
            for bundle in held.values()
        )
        return BrokerLoad(
            broker_id,
            bundles,
            cpu=min(1.0, demand) * self._noise.get(broker_id, 1.0),
            memory=0.3,
            messages_in=demand * served,
            bundle_count=len(bundles),
            draining=broker_id in self.draining,
        )

    async def hand_over(self, owner: str, bundle: str, to: str) -> None:
        await self._clock.sleep(_HAND_OVER_S)
        found = self._owned(owner, bundle)
        if to not in self.held:
            self.refused += 1
            raise PeerUnavailableError(f"{to} is gone", sent=False)
        del self.held[owner][bundle]
        self._give(found, to)

    async def split(self, owner: str, bundle: str) -> None:
        """A half has about half of the load, as far as topics can be shared out."""
        await self._clock.sleep(_HAND_OVER_S)
        found = self._owned(owner, bundle)
        share = self._dice.uniform(0.35, 0.65)
        topics = min(found.topics - 1, max(1, round(found.topics * share)))
        del self.held[owner][bundle], self.bundles[bundle]
        for name, part, count in (("a", share, topics), ("b", 1 - share, found.topics - topics)):
            half = ModelBundle(f"{bundle}{name}", found.namespace, found.weight * part, count)
            half.usage = found.usage * part
            self.bundles[half.name] = half
            self._give(half, owner)
        self.splits += 1

    def _owned(self, owner: str, bundle: str) -> ModelBundle:
        found = self.held.get(owner, {}).get(bundle)
        if found is None:
            self.refused += 1
            raise NotOwnerError(f"{owner} does not have {bundle}")
        return found

    # --- what happens -------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """The load as it is at this moment."""
        plan, dice = self._plan, self._dice
        self._bursts = {namespace: until for namespace, until in self._bursts.items() if until > now}
        while len(self._bursts) < plan.bursts_at_once:
            self._bursts[dice.randrange(plan.namespaces)] = now + plan.burst_s * dice.uniform(0.5, 1.5)
        factors = [1 + plan.wave * sin(tau * (now / plan.wave_s + phase)) for phase in self._phases]
        for namespace in self._bursts:
            factors[namespace] *= plan.burst
        for bundle in self.bundles.values():
            bundle.usage = bundle.weight * factors[bundle.namespace]
        self._noise = {broker: 1 + dice.gauss(0, plan.noise) for broker in self.held}

    def lose(self, count: int) -> list[ModelBundle]:
        """So many brokers die; what they had."""
        self._live = None
        lost = self._dice.sample(list(self.held), count)
        return [bundle for broker in lost for bundle in self.held.pop(broker).values()]

    def take_over(self, bundles: list[ModelBundle]) -> None:
        """Each is taken by whom everyone would choose, which is anyone that may have it."""
        takers: dict[int, list[str]] = {}
        for bundle in bundles:
            found = takers.get(bundle.namespace)
            if found is None:
                found = takers[bundle.namespace] = sorted(self.allowed(bundle.namespace))
            self._give(bundle, self._dice.choice(found))

    def join(self, count: int) -> None:
        """So many new, empty brokers."""
        self._live = None
        for _ in range(count):
            self.held[f"b{self._count:04}"] = {}
            self._count += 1

    def drain(self) -> str:
        """One broker is to be emptied."""
        self._live = None
        broker = self._dice.choice(list(self.held))
        self.draining.add(broker)
        return broker

    def _give(self, bundle: ModelBundle, broker: str) -> None:
        bundle.owner = broker
        self.held[broker][bundle.name] = bundle

    # --- what is seen -------------------------------------------------------------------------------------------

    def allowed(self, namespace: int) -> Set[str]:
        """Who may have a namespace's bundles now."""
        return self.isolation.allowed(f"t/n{namespace}", self.live())

    def live(self) -> frozenset[str]:
        """Those that may be given something."""
        if self._live is None:
            self._live = frozenset(broker for broker in self.held if broker not in self.draining)
        return self._live

    def sample(self, now: float) -> Sampled:
        demands = {broker: sum(bundle.usage for bundle in held.values()) for broker, held in self.held.items()}
        staying = sorted(demand for broker, demand in demands.items() if broker not in self.draining)
        mean = sum(demands.values()) / len(staying)
        bound = self._bound_levels()
        above = [demands[broker] - max(mean, bound.get(broker, 0.0)) for broker in self.live()]
        return Sampled(
            now,
            mean,
            _of_hundred(staying),
            staying[-1],
            _of_hundred(sorted(above)),
            tuple(broker for broker, demand in demands.items() if demand > 1 and self._avoidable(broker, demands)),
            self._misplaced(),
            *self._topics(),
        )

    def _topics(self) -> tuple[int, float, int]:
        """The fewest of a broker, the mean, and the most."""
        counts = [sum(bundle.topics for bundle in self.held[broker].values()) for broker in self.live()]
        return min(counts), sum(counts) / len(counts), max(counts)

    def _bound_levels(self) -> dict[str, float]:
        """What each broker of a group has at least, when the group's work is spread evenly."""
        groups: dict[Set[str], float] = {}
        allowed = [self.allowed(namespace) for namespace in range(int(self._plan.bound * self._plan.namespaces))]
        for bundle in self.bundles.values():
            if bundle.namespace < len(allowed):
                group = allowed[bundle.namespace]
                groups[group] = groups.get(group, 0.0) + bundle.usage
        levels: dict[str, float] = {}
        for group, usage in groups.items():
            for broker in group:
                levels[broker] = levels.get(broker, 0.0) + usage / len(group)
        return levels

    def _avoidable(self, broker: str, demands: dict[str, float]) -> bool:
        """Whether others could do some of it: those that may have it are not full themselves."""
        held = self.held[broker].values()
        biggest = max((bundle.usage for bundle in held if bundle.topics == 1), default=0.0)
        groups = {id(group): group for group in (self.allowed(bundle.namespace) for bundle in held)}
        return biggest < 1 and all(
            sum(demands[member] for member in group) < _ROOMY * len(group) for group in groups.values()
        )

    def _misplaced(self) -> int:
        """Those of bound namespaces alone: the others may be anywhere."""
        allowed = [self.allowed(namespace) for namespace in range(int(self._plan.bound * self._plan.namespaces))]
        return sum(
            bundle.owner not in allowed[bundle.namespace]
            for bundle in self.bundles.values()
            if bundle.namespace < len(allowed)
        )


def _of_hundred(rising: list[float]) -> float:
    """The 99th of 100."""
    return rising[min(len(rising) - 1, int(len(rising) * 0.99))]
