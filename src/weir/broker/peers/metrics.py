"""What is counted about calls between brokers: how many, how they went, how long they took, by their names."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from weir.model.errors import WeirError
from weir.runtime.interfaces import Clock


@dataclass(slots=True)
class CallCounts:
    """Calls of one direction; the keys are a call's name, and its name with the error's ("" for none)."""

    outcomes: dict[tuple[str, str], int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    under_way: int = 0

    @contextmanager
    def timing(self, name: str, clock: Clock) -> Iterator[None]:
        """Count what happens within."""
        began, outcome = clock.monotonic(), ""
        self.under_way += 1
        try:
            yield
        except WeirError as failure:
            outcome = type(failure).__name__
            raise
        except BaseException:
            outcome = "other"
            raise
        finally:
            self.under_way -= 1
            key = (name, outcome)
            self.outcomes[key] = self.outcomes.get(key, 0) + 1
            self.seconds[name] = self.seconds.get(name, 0.0) + clock.monotonic() - began


@dataclass(slots=True)
class PeerMetrics:
    """Of one broker."""

    asked: CallCounts = field(default_factory=CallCounts)
    served: CallCounts = field(default_factory=CallCounts)
    #: Connections that did not prove that they belong to the cluster.
    strangers: int = 0
