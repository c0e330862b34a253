"""What becomes of the messages of one topic, told to the log of traces: of so many batches as the policy says.

Which batches is decided by their first offset (or by where they were held), so that all that happens to a message
is told, or nothing. What was delivered is remembered until it is settled: those who acknowledge name offsets only.
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
#: Multiples of it, modulo 2^32, spread evenly: every so many-th batch, whatever the distances are.
_GOLDEN = 0x9E3779B1
_MASK = (1 << 32) - 1
#: Runs of offsets of one call that are told.
_MOST_RUNS = 256
#: Delivered messages of one consumer that are remembered.
_MOST_REMEMBERED = 200_000
#: Stored messages of a topic that are remembered, to tell what becomes of those that nobody gets.
_MOST_KEPT = 1_000_000
_TRACEPARENT = "traceparent"


class TopicTrace:
    """Fills `MessageTrace`. `position_of`: ledger and entry of an offset."""

    def __init__(
        self,
        name: TopicName,
        log: TraceLog,
        clock: Clock,
        position_of: Callable[[int], tuple[int, int] | None] = lambda offset: None,
        follow: Callable[[Callable[[list[Batch]], None]], None] | None = None,
    ) -> None:
        """`follow`: have a function called with all that is appended; asked once something is to be told."""
        self._follow = follow
        self._name = name
        self._log = log
        self._clock = clock
        self._position_of = position_of
        self._salt = crc32(str(name).encode())
        self._below = 0
        self.on = False
        #: What consumers of each subscription have.
        self._out: dict[str, dict[object, BitMap64]] = {}
        #: What was delivered to each subscription and is not settled, whoever has it.
        self._known: dict[str, BitMap64] = {}
        #: What was stored and told of since the topic was loaded, and is still there.
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
        """Whether it is told what becomes of a batch."""
        number = base_offset if held is None else held.ledger * 1_000_003 + held.entry
        return (number * _GOLDEN + self._salt) & _MASK < self._below

    def _event(self, topic: str, kind: TraceKind, **more: Any) -> TraceEvent:
        return TraceEvent(kind.value, topic, self._clock.wall_ms(), self._log.broker, **more)

    def _note(self, event: TraceEvent) -> None:
        self._log.note(self._name.namespace, event)

    # --- coming in --------------------------------------------------------------------------------------

    def stored(
        self, batches: Sequence[Batch], offset: int, seconds: float, *, producer: str = "", address: str = ""
    ) -> None:
        """Stored one behind the other, which took so long."""
        salt, below = self._salt, self._below
        for batch in batches:
            if (offset * _GOLDEN + salt) & _MASK < below:  # `takes`, of which this is the usual case
                self._stored(TraceKind.STORED, batch, offset, seconds * 1000, producer=producer, address=address)
            offset += batch.count

    def appended(self, batches: list[Batch]) -> None:
        """Those whose moment has come are told of: nobody publishes them."""
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

    # --- going out --------------------------------------------------------------------------------------

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
        """What became of these, of what was delivered."""
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
                    self._told(subscription, who, mine, kind, reason)
                    offsets -= mine
                    known -= mine
                if not offsets:
                    del there[who]
            self._told(subscription, None, known & _range(first, end), kind, reason)
            known.remove_range(first, end)

    def returned(self, subscription: str, who: object, runs: Sequence[Run] | None, reason: str = "") -> None:
        """A consumer gives back these offsets, or all that it has."""
        offsets = self._out.get(subscription, {}).get(who)
        if not offsets:
            return
        for first, end in [(0, int(offsets.max()) + 1)] if runs is None else runs:
            back = offsets & _range(first, end)
            self._told(subscription, who, back, TraceKind.RETRIED, reason)
            offsets -= back

    def dropped(self, subscription: str, batch: Batch, runs: Sequence[Run], reason: str) -> None:
        """Messages that no consumer of the subscription gets."""
        if self.takes(batch.base_offset, batch.held):
            for first, end in runs[:_MOST_RUNS]:
                self._note(
                    self._make(TraceKind.DROPPED, first=first, end=end, subscription=subscription, reason=reason)
                )

    def kept(self, first: int, end: int) -> BitMap64:
        """Of these, what was told when it was stored."""
        return self._kept & _range(first, end) if self._kept else BitMap64()

    def passed_by(self, subscription: str, offsets: BitMap64, reason: str) -> None:
        """Messages that the subscription gets no more, delivered before or not."""
        known = self._known.get(subscription)
        if known:
            delivered = known & offsets
            for run in _runs_in(delivered):
                self.settled(subscription, [run], TraceKind.DROPPED, reason)
            offsets = offsets - delivered
        self._told(subscription, None, offsets & self._kept, TraceKind.DROPPED, reason)

    def trimmed(self, start: int) -> None:
        """What is before this is no more, for anybody."""
        if self.on and self._kept and self._kept.min() < start:
            self._told("", None, self._kept & _range(0, start), TraceKind.DROPPED, "retention")
            self._kept.remove_range(0, start)

    def _told(self, subscription: str, who: object, offsets: BitMap64, kind: TraceKind, reason: str) -> None:
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
