"""Leases of runners (of streams, connectors, functions), asked of the admin REST by code that blocks."""

from dataclasses import dataclass

from weir.client.admin import Access, ask, join
from weir.model.errors import NotAllowedError, RunnerBusyError, WireError


@dataclass(frozen=True, slots=True)
class RunnerState:
    """Where they are run, if anywhere; and whether the one who asks may run them."""

    where: str | None
    allowed: bool


@dataclass(frozen=True, slots=True)
class RunnerLease:
    """Of one kind of runners, by its resource."""

    path: str

    def state(self, access: Access) -> RunnerState:
        found = ask(access, "GET", self.path)
        try:
            return RunnerState(found["where"], bool(found["allowed"]))
        except (KeyError, TypeError):
            raise WireError("the server does not tell its runner as expected") from None

    def take(self, access: Access, me: str, where: str, ttl_ms: int) -> None:
        """RunnerBusyError while another runs them."""
        try:
            ask(access, "PUT", self.path, {"runner": me, "where": where, "ttlMs": ttl_ms})
        except NotAllowedError as busy:
            raise RunnerBusyError(busy.what, hint="") from None  # the server has said what to do

    def release(self, access: Access, me: str) -> None:
        ask(access, "DELETE", join(self.path, me))
