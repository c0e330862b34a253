"""Deleted ledgers that some log still holds: remembered until the last such log is gone."""

from weir.model.ids import LedgerId


class Tombstones:
    """A tombstone says: entries of this ledger in logs up to that one are dead. A ledger that a recovery adds to
    after its deletion is alive in later logs, until the next look for orphans."""

    def __init__(self) -> None:
        self._through: dict[LedgerId, int] = {}
        self._held_by: dict[int, list[LedgerId]] = {}
        self._logs: dict[LedgerId, int] = {}

    def __len__(self) -> int:
        return len(self._through)

    def bury(self, ledger_id: LedgerId, through_log: int) -> None:
        self._through[ledger_id] = max(through_log, self._through.get(ledger_id, 0))

    def is_dead(self, ledger_id: LedgerId, log: int) -> bool:
        return log <= self._through.get(ledger_id, 0)

    def found(self, ledger_id: LedgerId, log: int) -> None:
        """The log holds entries of the dead ledger."""
        self._held_by.setdefault(log, []).append(ledger_id)
        self._logs[ledger_id] = self._logs.get(ledger_id, 0) + 1

    def log_removed(self, log: int) -> None:
        for ledger_id in self._held_by.pop(log, ()):
            self._logs[ledger_id] -= 1
            if not self._logs[ledger_id]:
                del self._logs[ledger_id]

    def all(self) -> list[tuple[LedgerId, int]]:
        """Everything that is remembered, sorted."""
        return sorted(self._through.items())

    def needed(self, being_written: list[int]) -> list[tuple[LedgerId, int]]:
        """What a checkpoint must name, sorted; the rest is forgotten. A log that is being written may turn out to
        hold entries of any ledger that was deleted since it was begun."""
        oldest = min(being_written, default=None)
        for ledger_id, through in list(self._through.items()):
            if ledger_id not in self._logs and (oldest is None or oldest > through):
                del self._through[ledger_id]
        return sorted(self._through.items())
