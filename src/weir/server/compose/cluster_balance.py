"""A broker's part in load balancing: its load report, and the leader that it may become."""

from collections.abc import Callable, Iterable, Set
from contextlib import AsyncExitStack
from dataclasses import dataclass

from weir.broker.balance.balancer import BalanceMetrics, Balancer, BalanceSettings, PeerControl, answer_leader
from weir.broker.balance.leader_election import Election
from weir.broker.balance.load_meter import LoadMeter
from weir.broker.broker import Broker
from weir.broker.cluster.bundle_handover import BundleMoves
from weir.broker.cluster.bundle_placement import candidates
from weir.broker.metadata.registry import Registry
from weir.broker.peers.peer_calls import PeerCalls, PeerHandlers
from weir.meta.interfaces import MetaStore
from weir.model.cluster import BrokerLoad
from weir.model.policies import Isolation
from weir.model.registry import BrokerInfo
from weir.model.topics import NamespaceName
from weir.runtime.interfaces import Runtime


class PolicyIsolation:
    """Fills `balance.isolation.Isolation` with the rule by which brokers claim unowned bundles."""

    def __init__(
        self,
        isolation_of: Callable[[NamespaceName], Isolation | None],
        brokers: Callable[[], Iterable[BrokerInfo]],
    ) -> None:
        self._isolation_of = isolation_of
        self._brokers = brokers
        self._live: frozenset[str] = frozenset()
        self._sets: dict[Isolation | None, frozenset[str]] = {}

    def allowed(self, namespace: str, live: frozenset[str]) -> Set[str]:
        if live != self._live:
            self._live, self._sets = live, {}
        isolation = self._isolation_of(NamespaceName.parse(namespace))
        found = self._sets.get(isolation)
        if found is None:
            there = [broker for broker in self._brokers() if broker.broker_id in live]
            found = self._sets[isolation] = frozenset(candidates(there, isolation))
        return found


@dataclass(frozen=True, slots=True)
class ClusterBalance:
    """Fills `api.Balance`."""

    election: Election
    balancer: Balancer
    control: PeerControl

    def leader(self) -> str:
        return self.election.leader()

    @property
    def leading(self) -> bool:
        return self.election.leading

    @property
    def metrics(self) -> BalanceMetrics:
        return self.balancer.metrics

    async def loads(self) -> list[BrokerLoad]:
        return await self.balancer.loads()


async def compose_balance(
    runtime: Runtime,
    meta: MetaStore,
    broker: Broker,
    bundles: BundleMoves,
    registry: Registry,
    *,
    peers: PeerCalls,
    handlers: PeerHandlers,
    settings: BalanceSettings,
    stack: AsyncExitStack,
) -> ClusterBalance:
    """Answer leaders from now on, and run for leader if balance is on."""
    name = bundles.ownership.me.broker_id
    meter = LoadMeter(
        name,
        runtime.clock,
        runtime.resources,
        topics=lambda: broker.served,
        bundle_of=bundles.bundle_of,
        held=lambda: list(bundles.ownership.held),
        draining=lambda: bundles.draining,
        memory_bytes=settings.memory_bytes,
    )
    answer_leader(handlers, bundles, meter)
    isolation = PolicyIsolation(registry.isolation, broker.brokers)
    control = PeerControl(peers, broker.brokers)
    balancer = Balancer(runtime.clock, control, isolation, settings)
    election = Election(meta, runtime, name, balancer.lead, ttl_s=settings.lease_s, stands=settings.enabled)
    await election.start()
    stack.push_async_callback(election.close)
    return ClusterBalance(election, balancer, control)
