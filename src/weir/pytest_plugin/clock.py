"""The clock of a test's broker."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from weir.pytest_plugin.durations import Duration, seconds_of
from weir.pytest_plugin.messages import moment_of

Ask = Callable[..., Any]


class BrokerClock:
    """It runs as all clocks do, and can be moved forward. Message delays, times to live, retention, transactions,
    expiry of queues, subscriptions and tokens go by it; whether clients are alive does not, unless you say so."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        #: What it was moved by, in seconds, of which clients' silence so much: a restarted broker goes on so.
        self.ahead_s = self.silent_s = 0.0

    def now(self) -> datetime:
        """What the broker's clock says, in UTC."""
        return self._note(self._ask("now"))

    @property
    def ahead(self) -> timedelta:
        """How far it is before the clock of this process."""
        return timedelta(seconds=self.ahead_s + self.silent_s)

    def advance(self, duration: Duration, *, silent_clients: bool = False) -> datetime:
        """Be later: by "3 days", "1h 30min", a timedelta, or seconds. When this returns, all that became due has
        been done, in its order, each thing at its time; what is for clients is on its way to them.
        `silent_clients`: as if every client had been silent for so long: sessions of groups end, connections that
        missed heartbeats are closed. Answers what the clock says now."""
        return self._note(self._ask("advance", seconds=seconds_of(duration), silent_clients=silent_clients))

    def set(self, moment: datetime) -> datetime:
        """Be at this moment (local time, if it has no time zone); ValueError if that is past."""
        behind = moment.astimezone(UTC) - self.now()
        if behind < timedelta(0):
            raise ValueError(f"{moment} is past for the broker: a clock goes forward only")
        return self.advance(behind)

    def _note(self, told: Mapping[str, float]) -> datetime:
        self.ahead_s, self.silent_s = told["ahead_s"], told["silent_s"]
        return moment_of(told["wall_ms"])
