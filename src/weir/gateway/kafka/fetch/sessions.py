"""Incremental fetch sessions: a client names what it reads once, and then only what changes.

Bounded over all connections, in sessions and in partitions. A session ends with its connection; where there is no
room, the client is told so by the session id 0 and names everything each time, as ever.
"""

from weir.gateway.kafka.errors import Code, RefusedError
from weir.gateway.kafka.fetch.parts import FetchParts
from weir.runtime.interfaces import Runtime

#: Epochs that are no numbers of a session's requests.
SESSIONLESS = -1
FIRST = 0
_LAST_EPOCH = 2**31 - 1
#: A session that was not used for so long gives way to another.
_IDLE_S = 120.0


class FetchSession:
    """Of one connection; `epoch` is what its next request must bear."""

    __slots__ = ("by_id", "counted", "epoch", "number", "owner", "parts", "used_at")

    def __init__(self, number: int, owner: object, parts: FetchParts, *, by_id: bool, now: float) -> None:
        self.number = number
        self.owner = owner
        self.parts = parts
        #: Whether its topics are named by their ids.
        self.by_id = by_id
        self.epoch = 1
        self.used_at = now
        #: With how many partitions it counts.
        self.counted = 0


class FetchSessions:
    """All sessions of a gateway, the one that was used longest ago first."""

    def __init__(self, runtime: Runtime, *, max_sessions: int, max_partitions: int) -> None:
        self._clock = runtime.clock
        self._rng = runtime.rng
        self._max_sessions = max_sessions
        self._max_partitions = max_partitions
        self._sessions: dict[int, FetchSession] = {}
        self._of_owner: dict[object, dict[int, FetchSession]] = {}
        self._partitions = 0
        #: Those of connections whose clients know nothing of sessions.
        self._unsaid: dict[object, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, owner: object, parts: FetchParts, *, by_id: bool) -> FetchSession | None:
        """A new session, if there is room."""
        now = self._clock.monotonic()
        while self._full(len(parts)):
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now - oldest.used_at < _IDLE_S:
                return None
            self._end(oldest)
        number = self._rng.randrange(1, _LAST_EPOCH)
        while number in self._sessions:
            number = self._rng.randrange(1, _LAST_EPOCH)
        session = self._sessions[number] = FetchSession(number, owner, parts, by_id=by_id, now=now)
        self._of_owner.setdefault(owner, {})[number] = session
        self._count(session)
        return session

    def unsaid(self, owner: object, *, by_id: bool) -> FetchParts | None:
        """What a connection fetched last, whose client names everything each time: most of it will be the same."""
        session = self._unsaid.get(owner)
        if session is None or session.by_id != by_id:
            return None
        self._use(session)
        return session.parts

    def keep_unsaid(self, owner: object, parts: FetchParts, *, by_id: bool) -> bool:
        """Keep it for the next fetch, if there is room."""
        former = self._unsaid.get(owner)
        if former is not None:
            self._end(former)
        session = self.open(owner, parts, by_id=by_id)
        if session is not None:
            self._unsaid[owner] = session
        return session is not None

    def _full(self, more: int) -> bool:
        return len(self._sessions) >= self._max_sessions or self._partitions + more > self._max_partitions

    def _count(self, session: FetchSession) -> None:
        """It has as many partitions as it has now."""
        self._partitions += len(session.parts) - session.counted
        session.counted = len(session.parts)

    def resume(self, owner: object, number: int, epoch: int, *, by_id: bool) -> FetchSession:
        """The session that a request goes on with."""
        session = self._sessions.get(number)
        if session is None or session.owner is not owner:
            raise RefusedError(Code.FETCH_SESSION_ID_NOT_FOUND, "no such fetch session")
        if session.epoch != epoch:
            raise RefusedError(Code.INVALID_FETCH_SESSION_EPOCH, f"the session is at epoch {session.epoch}")
        if session.by_id != by_id:
            raise RefusedError(Code.FETCH_SESSION_TOPIC_ID_ERROR, "a session names topics in one way only")
        session.epoch = 1 if epoch == _LAST_EPOCH else epoch + 1
        self._use(session)
        return session

    def _use(self, session: FetchSession) -> None:
        session.used_at = self._clock.monotonic()
        self._count(session)
        self._sessions[session.number] = self._sessions.pop(session.number)

    def close(self, owner: object, number: int) -> None:
        """End a session, if it is this connection's."""
        session = self._sessions.get(number)
        if session is not None and session.owner is owner:
            self._end(session)

    def close_of(self, owner: object) -> None:
        """The connection is gone."""
        for session in list(self._of_owner.get(owner, {}).values()):
            self._end(session)

    def _end(self, session: FetchSession) -> None:
        del self._sessions[session.number]
        self._partitions -= session.counted
        owned = self._of_owner[session.owner]
        del owned[session.number]
        if not owned:
            del self._of_owner[session.owner]
        if self._unsaid.get(session.owner) is session:
            del self._unsaid[session.owner]
        session.parts.close()
