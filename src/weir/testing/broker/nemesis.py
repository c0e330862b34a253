"""Trouble for brokers: the storage cluster's, aimed at brokers more often than at anyone else."""

from collections.abc import Callable
from random import Random
from typing import ClassVar, Protocol

from weir.testing.storage.cluster import Cluster
from weir.testing.storage.nemesis import Nemesis
from weir.testing.storage.plan import Fault, Plan
from weir.testing.storage.workload import Shared

#: A wall clock that jumps further than this would move every moment of delivery by as much.
_JUMPS_S = (-1.0, -0.3, 0.0, 0.4, 1.0)


class Brokers(Protocol):
    """Whom it is aimed at."""

    def some_broker(self, rng: Random) -> str: ...

    def end_broker(self, name: str) -> None:
        """Ask a broker to end in order."""


class BrokerNemesis(Nemesis):
    """Strikes a cluster with brokers."""

    def __init__(self, cluster: Cluster, brokers: Brokers, storage: Plan, shared: Shared, rng: Random) -> None:
        super().__init__(cluster, storage, shared, rng)
        self._brokers = brokers

    def _client(self) -> str:
        return self._brokers.some_broker(self._rng) if self._rng.random() < 0.6 else super()._client()

    def _anyone(self) -> str:
        return self._brokers.some_broker(self._rng) if self._rng.random() < 0.5 else super()._anyone()

    def _restart(self) -> None:
        """Orderly, of a bookie or of a broker."""
        if self._rng.random() < 0.3:
            self._restart_bookie()
        else:
            self._brokers.end_broker(self._brokers.some_broker(self._rng))

    def _small_jump(self) -> None:
        node = self._world.node(self._anyone())
        node.clock_skew = self._rng.choice(_JUMPS_S)
        node.clock.rate = self._rng.uniform(0.95, 1.05)

    _STRIKES: ClassVar[dict[Fault, Callable[["Nemesis"], Callable[[], None] | None]]] = {
        **Nemesis._STRIKES,
        Fault.RESTART_BOOKIE: _restart,  # type: ignore[dict-item]
        Fault.CLOCK: _small_jump,  # type: ignore[dict-item]
    }
