"""Trace spans for messages with W3C's `traceparent` header, each with its parent span.

An acknowledgment contains only offsets, so the broker remembers the parent span of each message from its publish
or delivery. The memory is limited over all topics; forgotten messages get no further spans.
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
#: Largest compressed payload, in bytes, that is decompressed to find a trace: larger ones are not worth the cost.
_OPENED_BYTES = 16 * 1024
#: Position of the attributes of a Kafka record batch, and the mask of its compression codec.
_KAFKA_ATTRIBUTES, _KAFKA_CODEC = 22, 7

#: The parent of further spans of a message; opaque to all but the exporter.
SpanParent = object


@dataclass(frozen=True, slots=True)
class Fate:
    """The outcome of a message in a subscription: `what` is a verb. `since_ms`: the time of its delivery; 0 if it
    was not delivered."""

    what: str
    subscription: str
    consumer: str = ""
    reason: str = ""
    since_ms: int = 0


class Tracing(Protocol):
    """Exports spans. It receives only batches that pass `carries_trace`, and must return quickly. Methods return
    the offsets of the messages with exported traces, each with the parent of its later spans."""

    def stored(
        self, topic: TopicName, batch: Batch, offset: int, seconds: float
    ) -> Sequence[tuple[int, SpanParent]]:
        """The batch was stored at `offset`, within `seconds`. The parents are the producers' spans."""

    def delivered(
        self, topic: TopicName, subscription: str, delivery: Delivery
    ) -> Sequence[tuple[int, SpanParent]]:
        """Messages were sent to a consumer of the subscription; for an empty name, to a reader by offset. The
        parents are the spans of the deliveries."""

    def parents(self, batch: Batch, wanted: int | None) -> Sequence[tuple[int, SpanParent]]:
        """The producers' spans of some messages (as bits; None: all) without earlier events."""

    def became(self, topic: TopicName, offset: int, parent: SpanParent, fate: Fate) -> None:
        """A message was acknowledged, scheduled for a retry, or dropped."""


def carries_trace(batch: Batch) -> bool:
    """Whether the batch may contain the header: its payload contains the header's name, or is compressed and small
    enough to decompress. Encrypted messages do not count."""
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
    """Export spans of batches sent to a reader by offset; its subscription is unknown to the broker."""
    for batch in batches:
        if carries_trace(batch):
            tracing.delivered(topic, "", Delivery(batch))


#: Most remembered messages of all topics: new ones replace the oldest.
_MOST_REMEMBERED = 50_000
#: Most messages of one call that get spans.
_MOST_AT_ONCE = 1_000
#: Key for stored messages, in place of a subscription.
_STORED = ""
_VERBS = {TraceKind.ACKNOWLEDGED: "acknowledge", TraceKind.RETRIED: "retry", TraceKind.DROPPED: "drop"}


@dataclass(slots=True)
class _Seen:
    """A stored or delivered message. `who`: its consumer, None after the consumer returned it."""

    parent: SpanParent
    since_ms: int = 0
    who: object = None
    consumer: str = ""


class _Offsets:
    """The remembered offsets of one subscription, or of stored messages. Compared by identity: a reloaded topic
    starts with new objects."""

    __slots__ = ("there",)

    def __init__(self) -> None:
        self.there = BitMap64()


class SpanMemory:
    """The remembered messages of all topics of a broker."""

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
    """Implements `MessageTrace`."""

    on = True

    def __init__(self, topic: TopicName, tracing: Tracing, memory: SpanMemory, clock: Clock) -> None:
        self._topic = topic
        self._tracing = tracing
        self._memory = memory
        self._clock = clock
        self._offsets: dict[str, _Offsets] = {_STORED: _Offsets()}

    def apply(self, policies: Policies) -> None:
        """Ignore policies: the producer requested the export with the header."""

    # --- stored and delivered messages --------------------------------------------------------------------------

    def stored(
        self, batches: Sequence[Batch], offset: int, seconds: float, *, producer: str = "", address: str = ""
    ) -> None:
        for batch in batches:
            if carries_trace(batch):
                for at, parent in self._tracing.stored(self._topic, batch, offset, seconds):
                    self._memory.put(self._offsets[_STORED], at, _Seen(parent))
            offset += batch.count

    def held(self, batch: Batch, place: HeldId, due_ms: int, *, producer: str = "", address: str = "") -> None:
        """Ignore held messages: they have no offset yet, and are invisible."""

    def delivered(
        self, subscription: str, who: object, name: str, address: str, deliveries: Sequence[Delivery]
    ) -> None:
        for delivery in deliveries:
            if carries_trace(delivery.batch):
                where, now_ms = self._offsets.setdefault(subscription, _Offsets()), self._clock.wall_ms()
                for at, parent in self._tracing.delivered(self._topic, subscription, delivery):
                    self._memory.put(where, at, _Seen(parent, now_ms, who, name))

    # --- outcomes -----------------------------------------------------------------------------------------------

    def settled(self, subscription: str, runs: Sequence[Run], kind: TraceKind, reason: str = "") -> None:
        where = self._offsets.get(subscription)
        if where is not None:
            for at in _present_in(where.there, runs):
                self._export(kind, subscription, at, self._memory.pop(where, at), reason)

    def returned(self, subscription: str, who: object, runs: Sequence[Run] | None, reason: str = "") -> None:
        where = self._offsets.get(subscription)
        if where is None or not where.there:
            return
        for at in _present_in(where.there, [(0, int(where.there.max()) + 1)] if runs is None else runs):
            seen = self._memory.get(where, at)
            if seen.who is who:
                self._export(TraceKind.RETRIED, subscription, at, seen, reason)
                seen.who = None

    def dropped(self, subscription: str, batch: Batch, runs: Sequence[Run], reason: str) -> None:
        if carries_trace(batch):
            for at, parent in self._tracing.parents(batch, bits_of_runs(runs, batch.base_offset)):
                self._export(TraceKind.DROPPED, subscription, at, _Seen(parent), reason)

    def kept(self, first: int, end: int) -> BitMap64:
        there = self._offsets[_STORED].there
        return BitMap64(_present_in(there, [(first, end)], most=len(there))) if there else BitMap64()

    def passed_by(self, subscription: str, offsets: BitMap64, reason: str) -> None:
        where, stored = self._offsets.get(subscription), self._offsets[_STORED]
        for at in islice(offsets, _MOST_AT_ONCE):
            if where is not None and at in where.there:
                self._export(TraceKind.DROPPED, subscription, at, self._memory.pop(where, at), reason)
            elif at in stored.there:
                self._export(TraceKind.DROPPED, subscription, at, self._memory.get(stored, at), reason)

    def trimmed(self, start: int) -> None:
        """Forget trimmed messages without a span: `passed_by` already reported those that a subscription
        missed."""
        stored = self._offsets[_STORED]
        for at in _present_in(stored.there, [(0, start)], most=len(stored.there)):
            self._memory.pop(stored, at)

    def _export(self, kind: TraceKind, subscription: str, offset: int, seen: _Seen, reason: str) -> None:
        fate = Fate(_VERBS[kind], subscription, seen.consumer, reason, seen.since_ms)
        self._tracing.became(self._topic, offset, seen.parent, fate)


def _present_in(there: BitMap64, runs: Iterable[Run], *, most: int = _MOST_AT_ONCE) -> list[int]:
    """The first `most` remembered offsets in these runs."""
    found: list[int] = []
    for first, end in runs:
        if len(found) >= most or not there:
            break
        if there.range_cardinality(first, end):
            wanted = BitMap64()
            wanted.add_range(first, end)
            found += islice(there & wanted, most - len(found))
    return found
