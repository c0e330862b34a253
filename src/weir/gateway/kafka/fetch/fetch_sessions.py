"""Partitions of fetches, and incremental fetch sessions.

A fetch skips a partition without new messages until its topic reports growth, so a fetch of a thousand idle
partitions costs as little as a fetch of one.

In an incremental session a client names its partitions once, and then only changes. Limits apply to the sessions
of all connections and to their partitions. A session ends with its connection. Above the limits the response has
session id 0, and the client names all partitions in each fetch.

`Topics` caches the loaded topics of one connection, which is cheaper than a lookup in the broker for each fetch.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

from weir.broker.api.broker import Broker
from weir.broker.api.topics import LogReader, Topic
from weir.gateway.kafka.errors import Code, RefusedError
from weir.gateway.kafka.metadata import Node
from weir.model.batch import Batch
from weir.model.ids import Buffer
from weir.model.topics import TopicName
from weir.runtime.interfaces import Runtime
from weir.wire.kafka import messages as m

#: A partition as requests name it: the topic's name, or since version 13 its id, and its number.
PartKey = tuple[str | bytes, int]
#: End, stable offset and start of a log, as in a response.
Marks = tuple[int, int, int]


class FetchPart:
    """One partition of a fetch."""

    __slots__ = (
        "access_revision",
        "batches",
        "error",
        "key",
        "leader",
        "leader_epoch",
        "log",
        "marks",
        "max_bytes",
        "name",
        "next",
        "offset",
        "opens",
        "pieces",
        "round",
        "size",
        "stop_watching",
        "told",
        "topic",
    )

    def __init__(self, key: PartKey) -> None:
        self.key = key
        #: The client's fetch offset, and its limit for this partition.
        self.offset = 0
        self.max_bytes = 0
        self.leader_epoch = -1
        #: The Weir topic of the partition, when found.
        self.name: TopicName | None = None
        self.topic: Topic | None = None
        self.log: LogReader | None = None
        self.stop_watching: Callable[[], None] | None = None
        #: The revision of grants at which the role was allowed to consume.
        self.access_revision = -1
        #: The offsets in the last response.
        self.told: Marks | None = None
        #: The number of the last full request that named this partition.
        self.round = 0
        self.begin()

    def begin(self) -> None:
        """Reset the state for a new fetch."""
        self.batches: list[Batch] = []
        #: Whether some batches are of another protocol; and the buffers of the response after decoding.
        self.opens = False
        self.pieces: list[Buffer] | None = None
        self.size = 0
        self.next = self.offset
        self.error = 0
        #: The current leader and epoch, if the client's metadata are outdated.
        self.leader: tuple[Node, int] | None = None
        self.marks: Marks | None = None

    def found(self, topic: Topic) -> None:
        """Set the loaded topic."""
        if topic is not self.topic:
            self.unwatch()
            self.topic = topic
        self.log = topic.reader()  # its policies may have changed

    def limit(self, committed: bool) -> int:
        """The offset before which a consumer may read all messages."""
        if self.topic is None:
            return 0
        return self.topic.stable_offset if committed else self.topic.end_offset

    def unwatch(self) -> None:
        if self.stop_watching is not None:
            self.stop_watching()
            self.stop_watching = None


class FetchParts:
    """The partitions of a fetch, in the order of service. It watches their topics from one fetch to the next,
    until `close`."""

    def __init__(self) -> None:
        self._round = 0
        self._committed = False
        self._parts: dict[PartKey, FetchPart] = {}
        #: Partitions that the next fetch must read.
        self._news: dict[FetchPart, None] = {}
        #: Partitions that have grown since the current fetch read them.
        self._grown: dict[FetchPart, None] = {}
        self._waiter: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[FetchPart]:
        return iter(self._parts.values())

    def put(self, key: PartKey, wanted: m.FetchRequest.FetchPartition) -> FetchPart:
        """Add or update a partition as in the request. A partition without new messages stays idle if the request
        has the same offset as before."""
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = FetchPart(key)
            self._news[part] = None
        elif part in self._news:
            del self._news[part]
            self._news[part] = None  # in the order in which the client wants to be served
        elif part.offset != wanted.fetch_offset or part.leader_epoch != wanted.current_leader_epoch:
            self._news[part] = None
        part.round = self._round
        part.offset = wanted.fetch_offset
        part.max_bytes = wanted.partition_max_bytes
        part.leader_epoch = wanted.current_leader_epoch
        return part

    def next_round(self) -> None:
        """Begin a full request, which names all its partitions."""
        self._round += 1

    def keep_named(self) -> None:
        """Remove the partitions that the current request did not name."""
        for key in [part.key for part in self._parts.values() if part.round != self._round]:
            self.forget(key)

    def forget(self, key: PartKey) -> None:
        part = self._parts.pop(key, None)
        if part is not None:
            part.unwatch()
            self._news.pop(part, None)

    def move_back(self, part: FetchPart) -> None:
        """Move a served partition behind the others in the order of service."""
        self._parts[part.key] = self._parts.pop(part.key)
        self._news.pop(part, None)
        self._news[part] = None

    def begin(self, committed: bool) -> list[FetchPart]:
        """Begin a fetch (`committed`: only below the stable offset); returns the partitions to read."""
        if committed != self._committed:  # the isolation levels have different ends of the log
            self._committed = committed
            self._news.update(dict.fromkeys(self._parts.values()))
        self._grown = {}
        return list(self._news)

    def found(self, part: FetchPart, topic: Topic) -> None:
        """Set a partition's loaded topic, and watch it."""
        part.found(topic)
        if part.stop_watching is None:
            part.stop_watching = topic.on_growth(partial(self._grew, part))

    def quiet(self, part: FetchPart) -> None:
        """Skip a partition without messages at its offset until it grows."""
        self._news.pop(part, None)

    async def grown(self, until: "asyncio.Future[None]") -> list[FetchPart]:
        """Wait until partitions may have new messages, or until `until` is done."""
        if not self._grown:
            self._waiter = until
            try:
                await until
            finally:
                self._waiter = None
        grown, self._grown = self._grown, {}
        return list(grown)

    def _grew(self, part: FetchPart) -> None:
        self._news[part] = None
        self._grown[part] = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        for part in self._parts.values():
            part.unwatch()
        self._parts, self._news, self._grown = {}, {}, {}


class Topics:
    """The loaded topics of one connection; it drops unloaded ones."""

    def __init__(self, broker: Broker, limit: int) -> None:
        self._broker = broker
        self._limit = limit
        self._topics: dict[TopicName, Topic] = {}
        self.role = ""

    def get(self, name: TopicName) -> Topic | None:
        found = self._topics.get(name)
        if found is None or found.alive:
            return found
        del self._topics[name]
        return None

    async def load(self, name: TopicName) -> Topic:
        """Load a topic if necessary; TopicNotFoundError, NotOwnerError, NotAuthorisedError."""
        topic = await self._broker.topic(name, role=self.role, create=False)
        if topic.stored is not None:
            if len(self._topics) >= self._limit:
                self._topics.clear()
            self._topics[name] = topic
        return topic


#: Special epochs: a fetch without a session, and one that opens a session.
SESSIONLESS = -1
FIRST = 0
_LAST_EPOCH = 2**31 - 1
#: A new session may evict one that was idle for this long.
_IDLE_S = 120.0


class FetchSession:
    """An incremental fetch session of one connection; `epoch`: the epoch of its next request."""

    __slots__ = ("by_id", "counted", "epoch", "number", "owner", "parts", "used_at")

    def __init__(self, number: int, owner: object, parts: FetchParts, *, by_id: bool, now: float) -> None:
        self.number = number
        self.owner = owner
        self.parts = parts
        #: Whether its requests name topics by id.
        self.by_id = by_id
        self.epoch = 1
        self.used_at = now
        #: Its partitions in the sum over all sessions.
        self.counted = 0


class FetchSessions:
    """All sessions of a gateway, least recently used first."""

    def __init__(self, runtime: Runtime, *, max_sessions: int, max_partitions: int) -> None:
        self._clock = runtime.clock
        self._rng = runtime.rng
        self._max_sessions = max_sessions
        self._max_partitions = max_partitions
        self._sessions: dict[int, FetchSession] = {}
        self._of_owner: dict[object, dict[int, FetchSession]] = {}
        self._partitions = 0
        #: Internal sessions of connections whose clients do not use fetch sessions.
        self._unsaid: dict[object, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, owner: object, parts: FetchParts, *, by_id: bool) -> FetchSession | None:
        """Open a session, or return None if the limits are reached."""
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
        """The partitions of the last fetch of a client without sessions: its next fetch names mostly the same."""
        session = self._unsaid.get(owner)
        if session is None or session.by_id != by_id:
            return None
        self._use(session)
        return session.parts

    def keep_unsaid(self, owner: object, parts: FetchParts, *, by_id: bool) -> bool:
        """Keep the partitions for the next fetch; False if the limits are reached."""
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
        """Update the sum of partitions with the session's current number."""
        self._partitions += len(session.parts) - session.counted
        session.counted = len(session.parts)

    def resume(self, owner: object, number: int, epoch: int, *, by_id: bool) -> FetchSession:
        """The session that an incremental request continues; RefusedError."""
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
        """End a session if this connection owns it."""
        session = self._sessions.get(number)
        if session is not None and session.owner is owner:
            self._end(session)

    def close_of(self, owner: object) -> None:
        """End all sessions of a closed connection."""
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
