"""The partitions that one fetch, or one fetch session, reads: where each stands, and which of them may have news.

A partition that was looked at and had nothing new is left alone until its topic says that it has grown, so a fetch
of a thousand idle partitions costs as little as a fetch of one.

Incremental fetch sessions: a client names what it reads once, and then only what changes.

Bounded over all connections, in sessions and in partitions. A session ends with its connection; where there is no
room, the client is told so by the session id 0 and names everything each time, as ever.

The topics that one connection reads, as they are loaded: to ask the broker for each fetch would cost more.
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
#: End, stable offset and start, as a client was told them.
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
        #: Where the client wants to read from, and how much at the most.
        self.offset = 0
        self.max_bytes = 0
        self.leader_epoch = -1
        #: The topic that it is, once it was found.
        self.name: TopicName | None = None
        self.topic: Topic | None = None
        self.log: LogReader | None = None
        self.stop_watching: Callable[[], None] | None = None
        #: As of which revision of grants the role may consume.
        self.access_revision = -1
        #: What the client was told last.
        self.told: Marks | None = None
        #: Counts the requests that name everything: which of them named it last.
        self.round = 0
        self.begin()

    def begin(self) -> None:
        """A new fetch begins."""
        self.batches: list[Batch] = []
        #: Whether some of them are of another protocol; and what those become that must be opened.
        self.opens = False
        self.pieces: list[Buffer] | None = None
        self.size = 0
        self.next = self.offset
        self.error = 0
        #: Who leads it, and in which epoch, where the client believes otherwise.
        self.leader: tuple[Node, int] | None = None
        self.marks: Marks | None = None

    def found(self, topic: Topic) -> None:
        """The topic as it is loaded now."""
        if topic is not self.topic:
            self.unwatch()
            self.topic = topic
        self.log = topic.reader()  # its policies may have changed

    def limit(self, committed: bool) -> int:
        """The offset before which a reader may see everything."""
        if self.topic is None:
            return 0
        return self.topic.stable_offset if committed else self.topic.end_offset

    def unwatch(self) -> None:
        if self.stop_watching is not None:
            self.stop_watching()
            self.stop_watching = None


class FetchParts:
    """The partitions of a fetch, in the order in which they shall be served. They are watched, from one fetch to
    the next; whoever does not keep them closes them."""

    def __init__(self) -> None:
        self._round = 0
        self._committed = False
        self._parts: dict[PartKey, FetchPart] = {}
        #: Those that the next fetch must look at.
        self._news: dict[FetchPart, None] = {}
        #: Those that have grown since the fetch under way looked at them.
        self._grown: dict[FetchPart, None] = {}
        self._waiter: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[FetchPart]:
        return iter(self._parts.values())

    def put(self, key: PartKey, wanted: m.FetchRequest.FetchPartition) -> FetchPart:
        """Read this partition, from now on as the request says. One that is asked for again where it had nothing
        new is left alone."""
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
        """A request follows that names everything anew."""
        self._round += 1

    def keep_named(self) -> None:
        """Forget what the request did not name."""
        for key in [part.key for part in self._parts.values() if part.round != self._round]:
            self.forget(key)

    def forget(self, key: PartKey) -> None:
        part = self._parts.pop(key, None)
        if part is not None:
            part.unwatch()
            self._news.pop(part, None)

    def move_back(self, part: FetchPart) -> None:
        """It was served: the next time the others come first."""
        self._parts[part.key] = self._parts.pop(part.key)
        self._news.pop(part, None)
        self._news[part] = None

    def begin(self, committed: bool) -> list[FetchPart]:
        """A new fetch begins, of decided messages only or of all: the partitions to look at."""
        if committed != self._committed:  # what is new to one of them may be old to the other
            self._committed = committed
            self._news.update(dict.fromkeys(self._parts.values()))
        self._grown = {}
        return list(self._news)

    def found(self, part: FetchPart, topic: Topic) -> None:
        """A partition's topic as it is loaded now."""
        part.found(topic)
        if part.stop_watching is None:
            part.stop_watching = topic.on_growth(partial(self._grew, part))

    def quiet(self, part: FetchPart) -> None:
        """It has nothing for a reader at its offset: left alone until it grows."""
        self._news.pop(part, None)

    async def grown(self, until: "asyncio.Future[None]") -> list[FetchPart]:
        """Wait until partitions may have more than what was read of them, or until told to wait no longer."""
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
    """Of one connection. One that has died is not known any more."""

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
        """The topic, loaded now if need be; TopicNotFoundError, NotOwnerError, NotAuthorisedError."""
        topic = await self._broker.topic(name, role=self.role, create=False)
        if topic.stored is not None:
            if len(self._topics) >= self._limit:
                self._topics.clear()
            self._topics[name] = topic
        return topic


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
