"""Connections that have not said yet who they are: a bounded number, so that strangers keep nobody out.

Of too many the one that has waited longest goes: whoever belongs here says so within a round trip.
"""

from typing import Generic, Protocol, TypeVar


class Unknown(Protocol):
    """A session whose other side is not known yet."""

    def abort(self) -> None:
        """End at once."""


S = TypeVar("S", bound=Unknown)


class Strangers(Generic[S]):
    """Those of one listener."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[S, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def came(self, session: S) -> None:
        """A new connection; it may cost the oldest stranger its own."""
        self._waiting[session] = None
        if len(self._waiting) > self._limit:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.abort()

    def settled(self, session: S) -> None:
        """It has proved itself, or is gone: it counts no more."""
        self._waiting.pop(session, None)
