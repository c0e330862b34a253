"""Trouble for many brokers: cut off from whom they need, one way or both, and a metadata store that fails."""

from collections.abc import Callable
from random import Random
from typing import ClassVar

from weir.testing.broker.nemesis import BrokerNemesis
from weir.testing.multibroker.cluster import MultiBrokerCluster
from weir.testing.storage.nemesis import Nemesis
from weir.testing.storage.plan import Fault
from weir.testing.storage.workload import Shared
from weir.testing.world.meta import MetaFaults

#: How late a change may come to a watch: up to several leases.
_WATCH_DELAYS_S = (0.3, 1.0, 4.0)


class MultiBrokerNemesis(BrokerNemesis):
    """Strikes a cluster of many brokers."""

    def __init__(self, cluster: MultiBrokerCluster, shared: Shared, rng: Random) -> None:
        super().__init__(cluster, cluster, cluster.shape.storage, shared, rng)
        self._names = cluster.broker_names

    def _sides(self) -> tuple[str, list[str], bool]:
        """A broker, from whom it is cut off, and whether from the metadata, too."""
        broker = self._brokers.some_broker(self._rng)
        others = [name for name in self._names if name != broker]
        sides: tuple[list[str], ...] = (
            self._cluster.bookie_names,
            [name for name in self._cluster.client_names if name not in self._names],
            others,
            [self._rng.choice(others)],
            [],
        )
        chosen = self._rng.sample(sides, self._rng.choice((1, 1, 2)))
        away = list(dict.fromkeys(name for side in chosen for name in side))
        return broker, away, not away or self._rng.random() < 0.2

    def _block(self, links: list[tuple[str, str]], broker: str, *, metadata: bool) -> Callable[[], None]:
        for source, target in links:
            self._world.net.block(source, target)
        if metadata:
            self._cluster.set_meta_faults(MetaFaults(outage=True), node=broker)

        def undo() -> None:
            for source, target in links:
                self._world.net.unblock(source, target)
            if metadata:
                self._cluster.set_meta_faults(None, node=broker)

        return undo

    def _cut_off(self) -> Callable[[], None]:
        """One broker from bookies, clients, other brokers, one of them, or the metadata; or halves of all."""
        if self._rng.random() < 0.25:
            return self._partition()
        broker, away, metadata = self._sides()
        links = [link for name in away for link in ((broker, name), (name, broker))]
        return self._block(links, broker, metadata=metadata)

    def _cut_off_one_way(self) -> Callable[[], None]:
        broker, away, metadata = self._sides()
        outwards = self._rng.random() < 0.5
        links = [(broker, name) if outwards else (name, broker) for name in away]
        return self._block(links, broker, metadata=metadata)

    def _lose_leader(self) -> Callable[[], None]:
        self._cluster.lose_meta_leader()
        return self._cluster.elect_meta_leader

    def _end_leases(self) -> None:
        """Of one broker, or of all at the same moment."""
        for name in self._names if self._rng.random() < 0.2 else [self._anyone()]:
            self._cluster.end_leases(name)

    def _late_watches(self) -> Callable[[], None]:
        return self._meta(MetaFaults(watch_delay_s=self._rng.choice(_WATCH_DELAYS_S)))

    _STRIKES: ClassVar[dict[Fault, Callable[["Nemesis"], Callable[[], None] | None]]] = {
        **BrokerNemesis._STRIKES,
        Fault.PARTITION: _cut_off,  # type: ignore[dict-item]
        Fault.ONE_WAY: _cut_off_one_way,  # type: ignore[dict-item]
        Fault.META_LEADER: _lose_leader,  # type: ignore[dict-item]
        Fault.EARLY_LEASES: _end_leases,  # type: ignore[dict-item]
        Fault.LATE_WATCHES: _late_watches,  # type: ignore[dict-item]
    }
