"""Spans of what becomes of the messages of one topic that carry W3C's `traceparent`, each with its parent.

Who acknowledges names offsets only: which trace a message belongs to is remembered from when it was stored or
delivered. So many messages of all topics together are; of those that are forgotten nothing more is told.

Messages that carry W3C's `traceparent`: whoever exports traces hears what becomes of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from pyroaring import BitMap64

from weir.broker.api.consumers import Delivery
from weir.model.batch import Batch, BatchFormat, HeldId, Run, bits_of_runs
from weir.model.messages import TraceKind
from weir.model.policies import Policies
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock
from weir.wire.formats.table import opened_size

_HEADER = b"traceparent"
#: What is compressed is opened up to this size, in bytes: a trace is worth little more.
_OPENED_BYTES = 16 * 1024
#: Where a record batch of Kafka says how it is compressed.
_KAFKA_ATTRIBUTES, _KAFKA_CODEC = 22, 7

#: What further spans of a message are children of: the exporter's, and nobody else's.
SpanParent = object


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a message of a subscription: `what` is a verb. `since_ms`: when its consumer got it; 0 if
    none did."""

    what: str
    subscription: str
    consumer: str = ""
    reason: str = ""
    since_ms: int = 0


class Tracing(Protocol):
    """Told of batches only in which `carries_trace` finds something. Must not take long. Answers offsets of the
    messages whose traces are exported, with the parents of what is told of them later."""

    def stored(
        self, topic: TopicName, batch: Batch, offset: int, seconds: float
    ) -> Sequence[tuple[int, SpanParent]]:
        """Its first message is at `offset` now, which took so long. The parents are the producers' spans."""

    def delivered(
        self, topic: TopicName, subscription: str, delivery: Delivery
    ) -> Sequence[tuple[int, SpanParent]]:
        """To a consumer of the subscription; without one, to a reader by offset. The parents are the deliveries'
        spans."""

    def parents(self, batch: Batch, wanted: int | None) -> Sequence[tuple[int, SpanParent]]:
        """The producers' spans of some messages (as bits; None: all) of which nothing was told yet."""

    def became(self, topic: TopicName, offset: int, parent: SpanParent, fate: Fate) -> None:
        """It was acknowledged, is retried, or is dropped."""


def carries_trace(batch: Batch) -> bool:
    """Whether there may be the header in it: where its name stands, and in what is compressed and small enough to
    be opened for this; not where messages are encrypted."""
    return _HEADER in bytes(batch.payload) or _hides(batch)


def _hides(batch: Batch) -> bool:
    payload = batch.payload
    if batch.format is BatchFormat.KAFKA:
        packed = len(payload) > _KAFKA_ATTRIBUTES and payload[_KAFKA_ATTRIBUTES] & _KAFKA_CODEC
        return bool(packed) and len(payload) <= _OPENED_BYTES
    if batch.format is BatchFormat.PULSAR:
        return len(payload) <= _OPENED_BYTES and len(payload) < opened_size(batch) <= _OPENED_BYTES * 16
    return False


def note_fetched(tracing: Tracing, topic: TopicName, batches: Sequence[Batch]) -> None:
    """Batches that a reader by offset was given: whose it is in the name of, only its client knows."""
    for batch in batches:
        if carries_trace(batch):
            tracing.delivered(topic, "", Delivery(batch))


#: Messages of all topics that are remembered: the oldest are forgotten for new ones.
_MOST_REMEMBERED = 50_000
#: Messages of one call that get spans.
_MOST_AT_ONCE = 1_000
#: In the place of a subscription: what was stored.
_STORED = ""
_VERBS = {TraceKind.ACKNOWLEDGED: "acknowledge", TraceKind.RETRIED: "retry", TraceKind.DROPPED: "drop"}


@dataclass(slots=True)
class _Seen:
    """A message when it was stored, or with a consumer: `who`, None once that has given it back."""

    parent: SpanParent
    since_ms: int = 0
    who: object = None
    consumer: str = ""


class _Offsets:
    """Those that are remembered of one subscription, or of what was stored. Known by its identity: a topic that is
    loaded again remembers anew."""

    __slots__ = ("there",)

    def __init__(self) -> None:
        self.there = BitMap64()


class SpanMemory:
    """Shared by all topics of a broker."""

    def __init__(self, most: int = _MOST_REMEMBERED) -> None:
        self._most = most
        self._seen: dict[tuple[_Offsets, int], _Seen] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def put(self, where: _Offsets, offset: int, seen: _Seen) -> None:
        self._seen.pop((where, offset), None)
        if len(self._seen) >= self._most:
            self.pop(*next(iter(self._seen)))
        self._seen[where, offset] = seen
        where.there.add(offset)

    def get(self, where: _Offsets, offset: int) -> _Seen:
        return self._seen[where, offset]

    def pop(self, where: _Offsets, offset: int) -> _Seen:
        where.there.discard(offset)
        return self._seen.pop((where, offset))


class TopicSpans:
    """Fills `MessageTrace`."""

    on = True

    def __init__(self, topic: TopicName, tracing: Tracing, memory: SpanMemory, clock: Clock) -> None:
        self._topic = topic
        self._tracing = tracing
        self._memory = memory
        self._clock = clock
        self._offsets: dict[str, _Offsets] = {_STORED: _Offsets()}

    def apply(self, policies: Policies) -> None:
        """They are exported whatever the policies say: the producer has asked for it."""

    # --- what is seen of messages -------------------------------------------------------------------------------

    def stored(
        self, batches: Sequence[Batch], offset: int, seconds: float, *, producer: str = "", address: str = ""
    ) -> None:
        for batch in batches:
            if carries_trace(batch):
                for at, parent in self._tracing.stored(self._topic, batch, offset, seconds):
                    self._memory.put(self._offsets[_STORED], at, _Seen(parent))
            offset += batch.count

    def held(self, batch: Batch, place: HeldId, due_ms: int, *, producer: str = "", address: str = "") -> None:
        """It has no offset yet, and nobody sees it."""

    def delivered(
        self, subscription: str, who: object, name: str, address: str, deliveries: Sequence[Delivery]
    ) -> None:
        for delivery in deliveries:
            if carries_trace(delivery.batch):
                where, now_ms = self._offsets.setdefault(subscription, _Offsets()), self._clock.wall_ms()
                for at, parent in self._tracing.delivered(self._topic, subscription, delivery):
                    self._memory.put(where, at, _Seen(parent, now_ms, who, name))

    # --- what becomes of them -----------------------------------------------------------------------------------

    def settled(self, subscription: str, runs: Sequence[Run], kind: TraceKind, reason: str = "") -> None:
        where = self._offsets.get(subscription)
        if where is not None:
            for at in _those_in(where.there, runs):
                self._tell(kind, subscription, at, self._memory.pop(where, at), reason)

    def returned(self, subscription: str, who: object, runs: Sequence[Run] | None, reason: str = "") -> None:
        where = self._offsets.get(subscription)
        if where is None or not where.there:
            return
        for at in _those_in(where.there, [(0, int(where.there.max()) + 1)] if runs is None else runs):
            seen = self._memory.get(where, at)
            if seen.who is who:
                self._tell(TraceKind.RETRIED, subscription, at, seen, reason)
                seen.who = None

    def dropped(self, subscription: str, batch: Batch, runs: Sequence[Run], reason: str) -> None:
        if carries_trace(batch):
            for at, parent in self._tracing.parents(batch, bits_of_runs(runs, batch.base_offset)):
                self._tell(TraceKind.DROPPED, subscription, at, _Seen(parent), reason)

    def kept(self, first: int, end: int) -> BitMap64:
        there = self._offsets[_STORED].there
        return BitMap64(_those_in(there, [(first, end)], most=len(there))) if there else BitMap64()

    def passed_by(self, subscription: str, offsets: BitMap64, reason: str) -> None:
        where, stored = self._offsets.get(subscription), self._offsets[_STORED]
        for at in islice(offsets, _MOST_AT_ONCE):
            if where is not None and at in where.there:
                self._tell(TraceKind.DROPPED, subscription, at, self._memory.pop(where, at), reason)
            elif at in stored.there:
                self._tell(TraceKind.DROPPED, subscription, at, self._memory.get(stored, at), reason)

    def trimmed(self, start: int) -> None:
        """Who had not seen it was told with `passed_by`: that it is gone is no part of its trace."""
        stored = self._offsets[_STORED]
        for at in _those_in(stored.there, [(0, start)], most=len(stored.there)):
            self._memory.pop(stored, at)

    def _tell(self, kind: TraceKind, subscription: str, offset: int, seen: _Seen, reason: str) -> None:
        fate = Fate(_VERBS[kind], subscription, seen.consumer, reason, seen.since_ms)
        self._tracing.became(self._topic, offset, seen.parent, fate)


def _those_in(there: BitMap64, runs: Iterable[Run], *, most: int = _MOST_AT_ONCE) -> list[int]:
    """The first of these that are there."""
    found: list[int] = []
    for first, end in runs:
        if len(found) >= most or not there:
            break
        if there.range_cardinality(first, end):
            wanted = BitMap64()
            wanted.add_range(first, end)
            found += islice(there & wanted, most - len(found))
    return found
