"""Deduplication of one topic: per producer name, the highest sequence id that is pending and that is stored.

Each batch in the log names its origin, so deduplication writes nothing per message: a periodic snapshot in the
topic's state covers the log up to an offset, and the broker reads the rest of the log when it opens the topic.
`DedupSwitch` turns deduplication on and off.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from enum import Enum, auto
from typing import Any, Protocol

from weir.broker.api.producers import Receipt
from weir.broker.context import BrokerContext
from weir.broker.ports import Holding
from weir.model.batch import Batch, BatchFlags, HeldId, Origin
from weir.model.errors import DuplicateInDoubtError
from weir.stream.log import Stream
from weir.stream.state_log import StateLog
from weir.wire.snapshots.producers import DedupSnapshot, decode_dedup, encode_dedup

KEY = "dedup"
#: Without a snapshot, a log of up to so many messages is always read completely.
_ALWAYS_READ = 100_000


class Verdict(Enum):
    """How to handle a batch."""

    NEW = auto()
    #: All of its messages are stored.
    DUPLICATE = auto()
    #: An earlier copy is pending: its result decides whether the batch is stored.
    UNDER_WAY = auto()
    #: A part of its messages is stored. A batch is opaque, so the broker can neither store nor drop it.
    OVERLAPS = auto()


class _Source(Protocol):
    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    async def read(self, offset: int, max_bytes: int) -> list[Batch]: ...


class _Holding(Protocol):
    def positions(self) -> dict[int, int]: ...

    def origins_since(self, positions: Mapping[int, int]) -> AsyncGenerator[Origin, None]: ...


class _ProducerEntry:
    """The state of one producer name."""

    __slots__ = ("pushed", "seen_ms", "stored", "under_way")

    def __init__(self, stored: int, seen_ms: int) -> None:
        self.stored = stored
        self.pushed = stored
        self.seen_ms = seen_ms
        #: (highest sequence, answer) of pending batches, in order.
        self.under_way: deque[tuple[int, asyncio.Future[int]]] = deque()


class Deduplication:
    """`known_to`: deduplication covers all batches before this offset. `in_doubt`: whether an append has failed
    since the log was last read to its end; the log may contain that batch nevertheless."""

    def __init__(
        self,
        changed: Callable[[], None],
        *,
        snapshot_every: int,
        forget_ms: int,
        in_doubt: Callable[[], bool] = lambda: False,
    ) -> None:
        self._names: dict[str, _ProducerEntry] = {}
        self._changed = changed
        self._in_doubt = in_doubt
        self._snapshot_every = snapshot_every
        self._forget_ms = forget_ms
        self._since_snapshot = 0
        self.known_to = 0
        #: The same for the holding area: the number of covered entries by ledger.
        self.known_held: dict[int, int] = {}

    def last_stored(self, producer: str) -> int:
        """The highest stored sequence id of this name; -1 if none is known."""
        known = self._names.get(producer)
        return -1 if known is None else known.stored

    def judge(self, producer: str, lowest: int, highest: int) -> Verdict:
        """Classify a batch by its sequence ids."""
        known = self._names.get(producer)
        if known is None or lowest > known.pushed:
            return Verdict.NEW
        if highest <= known.stored:
            return Verdict.DUPLICATE
        if highest <= known.pushed and lowest > known.stored:
            return Verdict.UNDER_WAY
        return Verdict.OVERLAPS

    def push(self, producer: str, highest: int, answer: "asyncio.Future[int]", now_ms: int) -> None:
        """Add a pending batch; `answer` completes when it is stored or has failed."""
        known = self._names.get(producer)
        if known is None:
            known = self._names[producer] = _ProducerEntry(-1, now_ms)
        known.pushed = highest
        known.seen_ms = now_ms
        known.under_way.append((highest, answer))

    def under_way(self, producer: str, highest: int) -> "asyncio.Future[int] | None":
        """The pending answer that decides whether this sequence id is stored."""
        known = self._names.get(producer)
        if known is None:
            return None
        return next((answer for upto, answer in known.under_way if upto >= highest), None)

    def pending(self, producer: str) -> "list[asyncio.Future[int]]":
        """The answers of pending batches, which may still fail."""
        known = self._names.get(producer)
        return [] if known is None else [answer for _, answer in known.under_way if not answer.done()]

    def stored(self, producer: str, highest: int, end_offset: int) -> None:
        """Record that the batch is in the log, which ends at `end_offset`."""
        known = self._names[producer]
        known.stored = max(known.stored, highest)
        known.pushed = max(known.pushed, known.stored)
        while known.under_way and known.under_way[0][0] <= highest:
            known.under_way.popleft()
        self._reached(end_offset)

    def failed(self, producer: str) -> None:
        """Record that the last pending batch was refused or failed. Other pending batches have failed too or will
        fail: until the topic has read the end of the log again, only stored batches count."""
        known = self._names.get(producer)
        if known is not None:
            known.under_way = deque(entry for entry in known.under_way if not entry[1].done())
            known.pushed = max([known.stored, *(upto for upto, _ in known.under_way)])

    def held(self, producer: str, highest: int, place: HeldId) -> None:
        """Record that the batch is in the holding area; it counts as stored."""
        known = self._names[producer]
        known.stored = max(known.stored, highest)
        known.pushed = max(known.pushed, known.stored)
        while known.under_way and known.under_way[0][0] <= highest:
            known.under_way.popleft()
        self.passed_held(place)

    def passed_held(self, place: HeldId) -> None:
        """Record a batch without an origin in the holding area."""
        self.known_held[place.ledger] = max(self.known_held.get(place.ledger, 0), place.entry + 1)
        self._reached(self.known_to)

    def passed(self, end_offset: int) -> None:
        """Record a batch without an origin in the log."""
        self._reached(end_offset)

    def _reached(self, end_offset: int) -> None:
        if not self._in_doubt():  # else `catch_up` must read batches of failed appends before this offset
            self.known_to = max(self.known_to, end_offset)
        self._since_snapshot += 1
        if self._since_snapshot >= self._snapshot_every:
            self._since_snapshot = 0
            self._changed()

    async def catch_up(self, log: _Source, now_ms: int) -> None:
        """Read the batches of the log that deduplication does not cover yet."""
        self.known_to = max(self.known_to, log.start_offset)
        while self.known_to < log.end_offset:
            for batch in await log.read(self.known_to, 1 << 20):
                self._learn(batch.origin, now_ms)
                self.known_to = batch.end_offset

    async def begin(self, log: _Source, now_ms: int) -> None:
        """Start without a snapshot. With deduplication always on, a snapshot precedes a long log: a long log whose
        last batch names no origin was written without deduplication, and holds no sequence ids."""
        length = log.end_offset - log.start_offset
        if length > _ALWAYS_READ:
            last = await log.read(log.end_offset - 1, 1)
            if last and last[0].origin is None and not last[0].flags & BatchFlags.LOST:
                self.known_to = log.end_offset
        await self.catch_up(log, now_ms)

    async def catch_up_held(self, holding: _Holding, now_ms: int) -> None:
        """`catch_up` for the holding area."""
        positions = holding.positions()
        async for origin in holding.origins_since(self.known_held):
            self._learn(origin, now_ms)
        self.known_held = positions

    def _learn(self, origin: object, now_ms: int) -> None:
        if not isinstance(origin, Origin) or origin.sequence < 0:
            return
        known = self._names.get(origin.producer)
        if known is None:
            self._names[origin.producer] = _ProducerEntry(origin.sequence, now_ms)
        else:
            known.stored = max(known.stored, origin.sequence)
            known.pushed = max(known.pushed, known.stored)

    def forget_idle(self, now_ms: int, connected: Callable[[str], bool]) -> None:
        """Drop names that are not connected and have sent nothing for `forget_ms`."""
        for name, known in list(self._names.items()):
            if now_ms - known.seen_ms > self._forget_ms and not known.under_way and not connected(name):
                del self._names[name]

    def to_bytes(self) -> bytes:
        """The snapshot."""
        names = {name: (known.stored, known.seen_ms) for name, known in self._names.items() if known.stored >= 0}
        return encode_dedup(DedupSnapshot(self.known_to, self.known_held, names))

    def load(self, data: bytes) -> None:
        """Start with a snapshot."""
        snapshot = decode_dedup(data)
        self.known_to, self.known_held = snapshot.known_to, dict(snapshot.held)
        self._names = {name: _ProducerEntry(stored, seen_ms) for name, (stored, seen_ms) in snapshot.names.items()}


def answer_duplicate(receipt: "asyncio.Future[Receipt]", first: "asyncio.Future[int]") -> None:
    """Complete the receipt of a duplicate with the result of the first copy."""
    if receipt.done():
        return
    if first.cancelled() or first.exception() is not None:
        receipt.set_exception(DuplicateInDoubtError("whether the message is stored is not known"))
    else:
        receipt.set_result(Receipt(-1, (-1, -1), duplicate=True))


def mirror(answer: "asyncio.Future[int]", done: "asyncio.Future[Any]") -> None:
    """Copy the result of an append or a hold to deduplication. A batch in the holding area counts as stored."""
    if done.cancelled() or done.exception() is not None:
        answer.set_exception(done.exception() or DuplicateInDoubtError("the first copy was not stored"))
        answer.exception()
    else:
        answer.set_result(-1)


class DedupSwitch:
    """Owns the deduplication while it is on. `in_doubt`: see `Deduplication`."""

    def __init__(
        self,
        context: BrokerContext,
        stream: Stream,
        state: StateLog,
        holding: Callable[[], Holding | None],
        in_doubt: Callable[[], bool],
    ) -> None:
        #: None while deduplication is off.
        self.current: Deduplication | None = None
        self._settings = context.settings
        self._clock = context.runtime.clock
        self._stream = stream
        self._state = state
        self._holding = holding
        self._in_doubt = in_doubt

    async def turn(self, on: bool) -> None:
        if not on:
            self.current = None
            self._state.delete(KEY)  # the snapshot would miss all batches that are stored from now on
        elif self.current is None:
            await self._start()

    async def _start(self) -> None:
        dedup = Deduplication(
            self.mark,
            snapshot_every=self._settings.dedup_snapshot_every,
            forget_ms=int(self._settings.dedup_forget_s * 1000),
            in_doubt=self._in_doubt,
        )
        snapshot = self._state.get(KEY)
        if snapshot is not None and not self._state.damaged:  # after damage only the log is reliable
            dedup.load(snapshot)
        else:
            await dedup.begin(self._stream, self._clock.wall_ms())
        await self._catch_up(dedup)
        self.current = dedup  # without an `await` since it caught up, no batch was stored in between

    async def catch_up(self) -> None:
        """Cover all batches in the log and the holding area, if deduplication is on."""
        if self.current is not None:
            await self._catch_up(self.current)

    async def _catch_up(self, dedup: Deduplication) -> None:
        holding, now_ms = self._holding(), self._clock.wall_ms()
        if holding is not None:
            await dedup.catch_up_held(holding, now_ms)
        await dedup.catch_up(self._stream, now_ms)

    def mark(self) -> None:
        """Include a snapshot in the next write of the state."""
        if self.current is not None:
            self._state.mark(KEY, self.current.to_bytes)
