"""Who runs what is defined: a process that has the lease."""

from typing import Protocol

from weir.model.sql_streams import RunnerLease


class LeasedRunner(Protocol):
    """One runner at a time, of one kind of definitions."""

    async def runner(self) -> RunnerLease | None:
        """Who runs them now."""

    async def take_runner(self, runner: str, where: str, ttl_ms: int) -> RunnerLease:
        """Be the runner for a while, or for a while longer; RunnerBusyError while another is."""

    async def release_runner(self, runner: str) -> None:
        """Not the runner any more; fine if it was not."""
