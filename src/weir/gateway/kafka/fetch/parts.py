"""The partitions that one fetch, or one fetch session, reads: where each stands, and which of them may have news.

A partition that was looked at and had nothing new is left alone until its topic says that it has grown, so a fetch
of a thousand idle partitions costs as little as a fetch of one.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

from weir.broker.api import LogReader, Topic
from weir.gateway.kafka.nodes import Node
from weir.model.batch import Batch
from weir.model.ids import Buffer
from weir.model.topics import TopicName
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
