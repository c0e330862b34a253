"""What the plots show: one sampler per broker, whose work does not grow with its topics nor with who looks.

A tick looks at the topics that are being looked at, at those through which something passed since the last one,
and at a few of all the others in turn; the sums of rates are counters that the broker has anyway. All that is
kept is bounded. While nobody looks, ticks are rarer.

Topics of a namespace by what passes through them, or waits in them: of all that this broker has loaded.

A topic that is not loaded does nothing, so none is missed that has anything to show. What is kept is a sum for
each topic; others have their turn after every few.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import nlargest

from weir.broker.api.broker import Broker
from weir.broker.api.topics import Topic
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.interfaces import Clock
from weir.runtime.waiters import Waiters

log = logging.getLogger(__name__)

#: How far plots go back.
SPAN_S = 300.0
_POINTS = 150
#: Topics of which a history is kept, the last that were sampled.
_HISTORIES = 500
#: Subscriptions of a topic of which the backlog is kept.
_SUBSCRIPTIONS = 50
#: Topics that a tick samples because they are busy, and because it is their turn.
_BUSY, _TURN = 100, 50
#: Topics of which somebody asked for the history are sampled at each tick for so long, at most so many.
_ASKED_S, _ASKED = 30.0, 200
#: Topics of which is known how much they hold for later.
_HOLDERS = 200


@dataclass(frozen=True, slots=True)
class SamplerSettings:
    #: Between ticks while somebody looks, and while nobody does.
    watched_s: float = 2.0
    unwatched_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Point:
    """Of all topics together, or of one: per second, and messages that wait for a subscription."""

    at_s: float
    messages_in: float = 0.0
    messages_out: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    backlog: int = 0


@dataclass(slots=True)
class TopicHistory:
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=_POINTS))
    #: By subscription: (seconds, backlog).
    lags: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    producers: int = 0
    consumers: int = 0
    storage_bytes: int = 0


class Sampler:
    """`tick` does one round; `run` does them all. `revision` grows with each, and `next` waits for that."""

    def __init__(self, clock: Clock, broker: Broker, settings: SamplerSettings | None = None) -> None:
        self._clock = clock
        self._broker = broker
        self._settings = settings or SamplerSettings()
        self.points: deque[Point] = deque(maxlen=_POINTS)
        self.topics: dict[TopicName, TopicHistory] = {}
        self.revision = 0
        self.loaded = 0
        #: How many topics were looked at in all: what a test counts.
        self.work = 0
        #: Until when topics are sampled at each tick, because somebody asked for their history.
        self._asked: dict[TopicName, float] = {}
        self._viewers = 0
        self._turn: Iterator[TopicName] = iter(())
        self._backlogs: dict[TopicName, int] = {}
        self._backlog = 0
        #: Topics that hold messages for later, and how many each held when it was last asked.
        self._held: dict[TopicName, int] = {}
        self._seen: tuple[float, int, int, int, int] | None = None
        self._changed = Waiters()
        self._sooner = Waiters()

    @property
    def viewers(self) -> int:
        return self._viewers

    @contextmanager
    def viewed(self) -> Iterator[None]:
        """Somebody looks, until this ends."""
        self._viewers += 1
        if self._viewers == 1:
            self._sooner.wake()
        try:
            yield
        finally:
            self._viewers -= 1

    def kept(self, topic: Topic) -> TopicHistory:
        """The history of a topic that somebody asks for: it is sampled for a while from now on."""
        now = self._clock.monotonic()
        if len(self._asked) < _ASKED or topic.name in self._asked:
            self._asked[topic.name] = now + _ASKED_S
        if topic.name not in self.topics:
            self._sample(topic, now)
        return self.topics[topic.name]

    async def next(self, seen: int) -> int:
        """Wait until there was a tick since `revision` was `seen`."""
        while self.revision == seen:
            await self._changed.wait()
        return self.revision

    @property
    def held(self) -> int:
        """Messages that wait for their moment."""
        return sum(self._held.values())

    async def count_held(self) -> None:
        """Ask those that hold something; few topics ever do, and what they know is in memory."""
        for name in list(self._held)[:_HOLDERS]:
            topic = self._broker.served_now(name)
            area = None if topic is None or topic.stored is None else topic.stored.held
            if area is None:
                del self._held[name]
            else:
                self._held[name] = (await area.count()).messages

    async def run(self) -> None:
        while True:
            try:
                await self.count_held()
                self.tick()
            except Exception:
                log.exception("the console's sampler failed, and goes on")
            settings = self._settings
            timer = self._clock.call_later(
                settings.watched_s if self._viewers else settings.unwatched_s, self._sooner.wake
            )
            try:
                await self._sooner.wait()
            finally:
                timer.cancel()

    def tick(self) -> None:
        """One round."""
        now = self._clock.monotonic()
        flows = self._broker.flows
        busy = flows.taken.take_busy() | flows.given.take_busy()
        for name in self._chosen(busy):
            topic = self._broker.served_now(name)
            if topic is None:
                self._forget(name)
            else:
                self._sample(topic, now)
        self.points.append(self._sum(now))
        self.revision += 1
        self._changed.wake()

    def _chosen(self, busy: set[TopicName]) -> list[TopicName]:
        now = self._clock.monotonic()
        for name in [name for name, until in self._asked.items() if until < now]:
            del self._asked[name]
        chosen = dict.fromkeys(self._asked)
        room = _BUSY + len(chosen)
        for name in busy:
            if len(chosen) >= room:
                break
            chosen[name] = None
        chosen.update(dict.fromkeys(self._next_in_turn()))
        return list(chosen)

    def _next_in_turn(self) -> Sequence[TopicName]:
        found = [name for name, _ in zip(self._turn, range(_TURN), strict=False)]
        if len(found) < _TURN:  # all had their turn: once more round
            names = [topic.name for topic in self._broker.loaded]
            self.loaded = len(names)
            known = set(names)
            for gone in [name for name in (*self._backlogs, *self.topics) if name not in known]:
                self._forget(gone)
            self._turn = iter(names)
            if not found:
                found = [name for name, _ in zip(self._turn, range(_TURN), strict=False)]
        return found

    def _sample(self, topic: Topic, now: float) -> None:
        self.work += 1
        stats = topic.stats()
        backlog = sum(each.backlog for each in stats.subscriptions if each.placed and each.durable)
        self._note_backlog(topic.name, backlog)
        if topic.stored is not None and topic.stored.held is not None and len(self._held) < _HOLDERS:
            self._held.setdefault(topic.name, 0)
        history = self.topics.pop(topic.name, None) or TopicHistory()
        self.topics[topic.name] = history
        if len(self.topics) > _HISTORIES:
            oldest = next((name for name in self.topics if name not in self._asked), None)
            if oldest is not None:
                del self.topics[oldest]
        taken, given = stats.published, stats.delivered
        history.points.append(
            Point(now, taken.messages_per_s, given.messages_per_s, taken.bytes_per_s, given.bytes_per_s, backlog)
        )
        history.producers = len(stats.producers)
        history.consumers = sum(len(each.consumers) for each in stats.subscriptions)
        history.storage_bytes = stats.storage_bytes
        known = {each.name: each.backlog for each in stats.subscriptions[:_SUBSCRIPTIONS] if each.placed}
        for name in [name for name in history.lags if name not in known]:
            del history.lags[name]
        for name, lag in known.items():
            history.lags.setdefault(name, deque(maxlen=_POINTS)).append((now, lag))

    def _forget(self, name: TopicName) -> None:
        """It is not served here any more."""
        self._note_backlog(name, 0)
        self.topics.pop(name, None)

    def _note_backlog(self, name: TopicName, backlog: int) -> None:
        self._backlog += backlog - self._backlogs.pop(name, 0)
        if backlog:
            self._backlogs[name] = backlog

    def _sum(self, now: float) -> Point:
        taken, given = self._broker.flows.taken, self._broker.flows.given
        seen = (now, taken.messages, given.messages, taken.bytes, given.bytes)
        before, self._seen = self._seen, seen
        if before is None or now <= before[0]:
            return Point(now, backlog=self._backlog)
        passed = now - before[0]
        rates = [(is_ - was) / passed for was, is_ in zip(before[1:], seen[1:], strict=True)]
        return Point(now, rates[0], rates[1], rates[2], rates[3], self._backlog)

    def busiest(self, most: int, wanted: Callable[[TopicName], bool] = lambda name: True) -> list[TopicName]:
        """Topics with a history, those first through which most passes, then those with most waiting."""
        ranked = sorted(
            (name for name, history in self.topics.items() if history.points),
            key=lambda name: _weight(self.topics[name].points[-1]),
            reverse=True,
        )
        found: list[TopicName] = []
        for name in ranked:
            if wanted(name):
                found.append(name)
                if len(found) == most:
                    break
        return found


def _weight(point: Point) -> tuple[float, int]:
    return (round(point.messages_in + point.messages_out, 1), point.backlog)


#: Of these columns.
ORDERS = ("in", "out", "backlog", "size")
#: Topics, or partitions, that one look takes in; and how many of them before others have their turn.
_MOST, _PER_TURN = 20_000, 50
#: How far down the list pages go.
_RANKS = 2_000


@dataclass(frozen=True, slots=True)
class Ranking:
    """Some topics in order; how many were compared, and whether there were more than are looked at."""

    names: list[TopicName]
    compared: int
    more: bool
    cut: bool


async def rank(
    broker: Broker,
    clock: Clock,
    namespace: NamespaceName,
    *,
    order: str,
    wanted: Callable[[TopicName], bool],
    page: tuple[int, int],
) -> Ranking:
    """The topics from one rank to another, the largest first."""
    sums: dict[TopicName, float] = {}
    loaded = [topic for topic in broker.loaded if topic.name.namespace == namespace and wanted(topic.name.base)]
    for number, topic in enumerate(loaded[:_MOST], 1):
        stats = topic.stats()
        match order:
            case "in":
                value: float = stats.published.messages_per_s
            case "out":
                value = stats.delivered.messages_per_s
            case "backlog":
                value = sum(each.backlog for each in stats.subscriptions if each.placed and each.durable)
            case _:
                value = stats.storage_bytes
        base = topic.name.base
        sums[base] = sums.get(base, 0.0) + value
        if number % _PER_TURN == 0:
            await clock.sleep(0)
    first, end = page[0], min(page[1], _RANKS)
    best = nlargest(end, sums, key=lambda name: sums[name])
    return Ranking(best[first:], len(sums), len(sums) > end and end < _RANKS, len(loaded) > _MOST)
