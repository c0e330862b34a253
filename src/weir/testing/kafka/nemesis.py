"""Trouble for Kafka's clients: as for brokers, aimed at the active one; and another one takes over."""

from collections.abc import Callable
from random import Random
from typing import ClassVar

from weir.testing.broker.nemesis import BrokerNemesis
from weir.testing.kafka.cluster import KafkaCluster
from weir.testing.storage.nemesis import Nemesis
from weir.testing.storage.plan import Fault
from weir.testing.storage.workload import Shared


class KafkaNemesis(BrokerNemesis):
    """Strikes a cluster with an active broker and one that stands by."""

    def __init__(self, cluster: KafkaCluster, shared: Shared, rng: Random) -> None:
        super().__init__(cluster, cluster, cluster.kafka_plan.storage, shared, rng)
        self._kafka = cluster
        self._zombie: str | None = None

    def heal(self) -> None:
        super().heal()
        self._bury()

    def _take_over(self) -> Callable[[], None] | None:
        """The other broker becomes active; sometimes the first sleeps, and wakes up when it is too late."""
        if self._zombie is not None:
            return None
        self._zombie = self._kafka.take_over()
        if self._rng.random() < 0.4:
            self._world.node(self._zombie).pause()
            if self._rng.random() < 0.7:
                self._world.loop.call_later(self._rng.uniform(1.0, 3.0), self._world.node(self._zombie).resume)
        return self._bury

    def _bury(self) -> None:
        if self._zombie is not None:
            self._world.node(self._zombie).resume()
            self._kafka.bury(self._zombie)
            self._zombie = None

    def _span(self) -> float:
        """Zombies live long enough to see that their leases have run out."""
        return super()._span() if self._zombie is None else self._rng.uniform(0.5, 6.0)

    _STRIKES: ClassVar[dict[Fault, Callable[["Nemesis"], Callable[[], None] | None]]] = {
        **BrokerNemesis._STRIKES,
        Fault.LEASES: _take_over,  # type: ignore[dict-item]
    }
