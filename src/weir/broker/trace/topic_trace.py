"""Writes the events of one topic's messages to the trace log, for the share of batches that the policy sets.

The first offset of a batch (or its place in the holding area) selects the batch, so that the log contains all
events of a message or none. The topic remembers deliveries until they are settled, because acknowledgments contain
only offsets.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any
from zlib import crc32

from pyroaring import BitMap64

from weir.broker.api.consumers import Delivery
from weir.broker.trace.trace_log import TraceLog
from weir.model.batch import Batch, BatchFlags, HeldId, Run, runs_of
from weir.model.messages import TRACE_TOPIC, TraceEvent, TraceKind
from weir.model.policies import Policies
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock
from weir.wire.formats.headers import RawHead, heads_of

_MILLION = 1_000_000
#: Its multiples modulo 2^32 are evenly spread, so the sample is even regardless of the distances of offsets.
_GOLDEN = 0x9E3779B1
_MASK = (1 << 32) - 1
#: Most runs of offsets logged per call.
_MOST_RUNS = 256
#: Most remembered deliveries of one consumer.
_MOST_REMEMBERED = 200_000
#: Most remembered stored messages of a topic, for events of messages that are never delivered.
_MOST_KEPT = 1_000_000
_TRACEPARENT = "traceparent"


class TopicTrace:
    """Implements `MessageTrace`. `position_of`: ledger and entry of an offset."""

    def __init__(
        self,
        name: TopicName,
        log: TraceLog,
        clock: Clock,
        position_of: Callable[[int], tuple[int, int] | None] = lambda offset: None,
        follow: Callable[[Callable[[list[Batch]], None]], None] | None = None,
    ) -> None:
        """`follow`: registers a function that receives all appended batches; called when tracing first starts."""
        self._follow = follow
        self._name = name
        self._log = log
        self._clock = clock
        self._position_of = position_of
        self._salt = crc32(str(name).encode())
        self._below = 0
        self.on = False
        #: Unsettled messages of each consumer, by subscription.
        self._out: dict[str, dict[object, BitMap64]] = {}
        #: Delivered and unsettled messages of each subscription, of all consumers.
        self._known: dict[str, BitMap64] = {}
        #: Messages with a `stored` event since the load of the topic that still exist.
        self._kept = BitMap64()
        self._make = partial(self._event, str(name))

    def apply(self, policies: Policies) -> None:
        ppm = policies.trace_ppm or 0
        self._below = (ppm << 32) // _MILLION
        self.on = ppm > 0 and self._name.local != TRACE_TOPIC
        if self.on and self._follow is not None:
            follow, self._follow = self._follow, None
            follow(self.appended)
        if not self.on:
            self._out.clear()
            self._known.clear()
            self._kept.clear()

    def takes(self, base_offset: int, held: HeldId | None = None) -> bool:
        """Whether the sample includes the batch."""
        number = base_offset if held is None else held.ledger * 1_000_003 + held.entry
        return (number * _GOLDEN + self._salt) & _MASK < self._below

    def _event(self, topic: str, kind: TraceKind, **more: Any) -> TraceEvent:
        return TraceEvent(kind.value, topic, self._clock.wall_ms(), self._log.broker, **more)

    def _note(self, event: TraceEvent) -> None:
        self._log.note(self._name.namespace, event)

    # --- publishing -------------------------------------------------------------------------------------

    def stored(
        self, batches: Sequence[Batch], offset: int, seconds: float, *, producer: str = "", address: str = ""
    ) -> None:
        """Batches were stored in sequence from `offset` on; `seconds`: the duration of the write."""
        salt, below = self._salt, self._below
        for batch in batches:
            if (offset * _GOLDEN + salt) & _MASK < below:  # the usual case of `takes`, inlined
                self._stored(TraceKind.STORED, batch, offset, seconds * 1000, producer=producer, address=address)
            offset += batch.count

    def appended(self, batches: list[Batch]) -> None:
        """Log released delayed messages: they have no publish of their own."""
        if not self.on:
            return
        for batch in batches:
            if batch.held is not None and batch.flags & BatchFlags.RELEASED and self.takes(0, batch.held):
                place = f"{batch.held.ledger}:{batch.held.entry}"
                self._stored(TraceKind.RELEASED, batch, batch.base_offset, 0.0, held=place)

    def _stored(self, kind: TraceKind, batch: Batch, offset: int, took_ms: float, **more: object) -> None:
        keys, traces = said_by(heads_of(batch))
        if len(self._kept) < _MOST_KEPT:
            self._kept.add_range(offset, offset + batch.count)
        ledger, entry = self._position_of(offset) or (-1, -1)
        self._note(
            self._make(
                kind,
                first=offset,
                end=offset + batch.count,
                took_ms=round(took_ms, 3),
                ledger=ledger,
                entry=entry,
                keys=keys,
                traces=traces,
                **more,
            )
        )

    def held(self, batch: Batch, place: HeldId, due_ms: int, *, producer: str = "", address: str = "") -> None:
        if self.takes(0, place):
            keys, traces = said_by(heads_of(batch))
            self._note(
                self._make(
                    TraceKind.HELD,
                    held=f"{place.ledger}:{place.entry}",
                    due_ms=due_ms,
                    producer=producer,
                    address=address,
                    keys=keys,
                    traces=traces,
                )
            )

    # --- delivery ---------------------------------------------------------------------------------------

    def delivered(
        self, subscription: str, who: object, name: str, address: str, deliveries: Sequence[Delivery]
    ) -> None:
        salt, below = self._salt, self._below
        for delivery in deliveries:
            batch = delivery.batch
            base = batch.base_offset
            if not (
                (base * _GOLDEN + salt) & _MASK < below if batch.held is None else self.takes(base, batch.held)
            ):
                continue
            now_ms = self._clock.wall_ms()
            runs = [(base, batch.end_offset)] if delivery.wanted is None else runs_of(delivery.wanted, base)
            offsets = self._out.setdefault(subscription, {}).setdefault(who, BitMap64())
            known = self._known.setdefault(subscription, BitMap64())
            for first, end in runs[:_MOST_RUNS]:
                if len(offsets) < _MOST_REMEMBERED:
                    offsets.add_range(first, end)
                    known.add_range(first, end)
                self._note(
                    self._make(
                        TraceKind.DELIVERED,
                        first=first,
                        end=end,
                        took_ms=float(max(0, now_ms - batch.append_ms)),
                        subscription=subscription,
                        consumer=name,
                        address=address,
                        times=delivery.redelivered,
                    )
                )

    def settled(self, subscription: str, runs: Sequence[Run], kind: TraceKind, reason: str = "") -> None:
        """Delivered messages were acknowledged, scheduled for a retry or dropped."""
        known = self._known.get(subscription)
        if not known:
            return
        there = self._out.get(subscription, {})
        for first, end in runs:
            if not known.range_cardinality(first, end):
                continue
            for who, offsets in list(there.items()):
                mine = offsets & _range(first, end)
                if mine:
                    self._note_outcome(subscription, who, mine, kind, reason)
                    offsets -= mine
                    known -= mine
                if not offsets:
                    del there[who]
            self._note_outcome(subscription, None, known & _range(first, end), kind, reason)
            known.remove_range(first, end)

    def returned(self, subscription: str, who: object, runs: Sequence[Run] | None, reason: str = "") -> None:
        """A consumer returned these offsets, or all of its messages."""
        offsets = self._out.get(subscription, {}).get(who)
        if not offsets:
            return
        for first, end in [(0, int(offsets.max()) + 1)] if runs is None else runs:
            back = offsets & _range(first, end)
            self._note_outcome(subscription, who, back, TraceKind.RETRIED, reason)
            offsets -= back

    def dropped(self, subscription: str, batch: Batch, runs: Sequence[Run], reason: str) -> None:
        """The subscription skips these messages."""
        if self.takes(batch.base_offset, batch.held):
            for first, end in runs[:_MOST_RUNS]:
                self._note(
                    self._make(TraceKind.DROPPED, first=first, end=end, subscription=subscription, reason=reason)
                )

    def kept(self, first: int, end: int) -> BitMap64:
        """The offsets in the range with a `stored` event."""
        return self._kept & _range(first, end) if self._kept else BitMap64()

    def passed_by(self, subscription: str, offsets: BitMap64, reason: str) -> None:
        """The subscription will not receive these messages any more, delivered before or not."""
        known = self._known.get(subscription)
        if known:
            delivered = known & offsets
            for run in _runs_in(delivered):
                self.settled(subscription, [run], TraceKind.DROPPED, reason)
            offsets = offsets - delivered
        self._note_outcome(subscription, None, offsets & self._kept, TraceKind.DROPPED, reason)

    def trimmed(self, start: int) -> None:
        """Retention removed all messages before `start`."""
        if self.on and self._kept and self._kept.min() < start:
            self._note_outcome("", None, self._kept & _range(0, start), TraceKind.DROPPED, "retention")
            self._kept.remove_range(0, start)

    def _note_outcome(
        self, subscription: str, who: object, offsets: BitMap64, kind: TraceKind, reason: str
    ) -> None:
        name, address = getattr(who, "name", ""), getattr(getattr(who, "request", None), "address", "")
        for first, end in islice(_runs_in(offsets), _MOST_RUNS):
            self._note(
                self._make(
                    kind,
                    first=first,
                    end=end,
                    subscription=subscription,
                    consumer=name,
                    address=address,
                    reason=reason,
                )
            )


def _range(first: int, end: int) -> BitMap64:
    found = BitMap64()
    found.add_range(first, end)
    return found


def _runs_in(offsets: BitMap64) -> Iterator[Run]:
    begun = at = -1
    for offset in offsets:
        if offset != at:
            if begun >= 0:
                yield begun, at
            begun = offset
        at = offset + 1
    if begun >= 0:
        yield begun, at


def said_by(heads: Sequence[RawHead] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Keys and traces of messages."""
    if heads is None:
        return (), ()
    keys = tuple("" if key is None else key.decode("utf-8", "replace") for key, _ in heads)
    traces = tuple(_trace_in(headers) for _, headers in heads)
    return keys if any(keys) else (), traces if any(traces) else ()


def _trace_in(headers: Sequence[tuple[str, bytes | None]]) -> str:
    """The trace id of W3C's `traceparent`: version, trace, span, flags."""
    for name, text in headers:
        if name == _TRACEPARENT and text is not None:
            parts = text.decode("ascii", "replace").split("-")
            return parts[1].lower() if len(parts) >= 4 and len(parts[1]) == 32 else ""
    return ""
