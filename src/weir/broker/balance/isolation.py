"""Which brokers may have a namespace's bundles, as balance asks it."""

from collections.abc import Set
from typing import Protocol


class Isolation(Protocol):
    """Bindings of namespaces to groups of brokers."""

    def allowed(self, namespace: str, live: frozenset[str]) -> Set[str]:
        """Those among the live brokers that may have its bundles, a fallback taken into account. For namespaces
        that are bound alike it is the same or an equal set; it is empty only if nobody lives."""


class NoIsolation:
    """Every broker may have everything."""

    def allowed(self, namespace: str, live: frozenset[str]) -> Set[str]:
        return live
