"""What was done of late, so that nothing is done again too soon."""

from collections.abc import Iterable

from weir.broker.balance.actions import Action, Move, Reason
from weir.broker.balance.limits import BalanceLimits


class History:
    """Of one leader. A new leader begins with none: what the last one moved may move once more, and no more."""

    def __init__(self) -> None:
        #: Brokers that are being relieved, or filled, until they are within the inner threshold.
        self.hot: frozenset[str] = frozenset()
        self.cold: frozenset[str] = frozenset()
        #: The same by numbers of topics: too many, and too few.
        self.many: frozenset[str] = frozenset()
        self.few: frozenset[str] = frozenset()
        self._bundles: dict[str, float] = {}
        self._brokers: dict[str, float] = {}
        self._memory: dict[str, float] = {}

    def bundle_rests(self, bundle: str, limits: BalanceLimits, now: float) -> bool:
        """Whether it was moved so recently that it stays."""
        at = self._bundles.get(bundle)
        return at is not None and now - at < limits.bundle_pause_s

    def broker_rests(self, broker: str, limits: BalanceLimits, now: float) -> bool:
        """Whether what is measured of it may still be of before its last move."""
        at = self._brokers.get(broker)
        return at is not None and now - at < limits.broker_pause_s

    def memory_rests(self, broker: str, limits: BalanceLimits, now: float) -> bool:
        """Whether it gave a bundle for its memory's sake a while ago: a process gives memory back late or never,
        so one more each round would leave it empty and no better."""
        at = self._memory.get(broker)
        return at is not None and now - at < limits.bundle_pause_s

    def note(self, actions: Iterable[Action], limits: BalanceLimits, now: float) -> None:
        """Remember what is asked for now, done or not; forget what has rested long enough. Splits are not among
        it: the halves are where they were, are measured by their topics, and may move at once."""
        self._bundles = {b: at for b, at in self._bundles.items() if now - at < limits.bundle_pause_s}
        self._brokers = {b: at for b, at in self._brokers.items() if now - at < limits.broker_pause_s}
        self._memory = {b: at for b, at in self._memory.items() if now - at < limits.bundle_pause_s}
        for action in actions:
            if isinstance(action, Move):
                self._bundles[action.bundle] = now
                self._brokers[action.source] = self._brokers[action.target] = now
                if action.reason is Reason.MEMORY:
                    self._memory[action.source] = now
