"""Deduplication: per producer name, the highest sequence id that was sent on, and the highest that is stored.

What is stored is known from the log itself (each batch names its origin), so nothing is written per message: a
snapshot now and then says up to which offset it is right, and an opening topic reads the log from there on.

Deduplication of one topic switched on and off, brought up to date, and remembered in the topic's state.
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
#: A log of so many messages is read to its end, whatever the last of them looks like.
_ALWAYS_READ = 100_000


class Verdict(Enum):
    """What to do with a batch."""

    NEW = auto()
    #: All of it is stored.
    DUPLICATE = auto()
    #: It was sent on and has not been answered: whether it is stored will be known then.
    UNDER_WAY = auto()
    #: Some of its messages are there and some are not; a batch is opaque, so it can neither be stored nor dropped.
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


class _Known:
    """What is known of one producer name."""

    __slots__ = ("pushed", "seen_ms", "stored", "under_way")

    def __init__(self, stored: int, seen_ms: int) -> None:
        self.stored = stored
        self.pushed = stored
        self.seen_ms = seen_ms
        #: (highest sequence, answer) of what was sent on, in order.
        self.under_way: deque[tuple[int, asyncio.Future[int]]] = deque()


class Deduplication:
    """Of one topic. `known_to`: everything stored before this offset is taken into account. `in_doubt`: whether an
    append failed since the log was last read to its end: the log may have that batch all the same."""

    def __init__(
        self,
        changed: Callable[[], None],
        *,
        snapshot_every: int,
        forget_ms: int,
        in_doubt: Callable[[], bool] = lambda: False,
    ) -> None:
        self._names: dict[str, _Known] = {}
        self._changed = changed
        self._in_doubt = in_doubt
        self._snapshot_every = snapshot_every
        self._forget_ms = forget_ms
        self._since_snapshot = 0
        self.known_to = 0
        #: The same for the holding area: entries of each of its ledgers that are taken into account.
        self.known_held: dict[int, int] = {}

    def last_stored(self, producer: str) -> int:
        """The highest sequence id stored for this name; -1 if none is known."""
        known = self._names.get(producer)
        return -1 if known is None else known.stored

    def judge(self, producer: str, lowest: int, highest: int) -> Verdict:
        """What a batch with these sequence ids is."""
        known = self._names.get(producer)
        if known is None or lowest > known.pushed:
            return Verdict.NEW
        if highest <= known.stored:
            return Verdict.DUPLICATE
        if highest <= known.pushed and lowest > known.stored:
            return Verdict.UNDER_WAY
        return Verdict.OVERLAPS

    def push(self, producer: str, highest: int, answer: "asyncio.Future[int]", now_ms: int) -> None:
        """The batch was sent on; `answer` tells what becomes of it."""
        known = self._names.get(producer)
        if known is None:
            known = self._names[producer] = _Known(-1, now_ms)
        known.pushed = highest
        known.seen_ms = now_ms
        known.under_way.append((highest, answer))

    def under_way(self, producer: str, highest: int) -> "asyncio.Future[int] | None":
        """The answer that will tell whether this sequence id is stored."""
        known = self._names.get(producer)
        if known is None:
            return None
        return next((answer for upto, answer in known.under_way if upto >= highest), None)

    def pending(self, producer: str) -> "list[asyncio.Future[int]]":
        """The answers to what was sent on and may still fail."""
        known = self._names.get(producer)
        return [] if known is None else [answer for _, answer in known.under_way if not answer.done()]

    def stored(self, producer: str, highest: int, end_offset: int) -> None:
        """The batch is in the log, which ends there."""
        known = self._names[producer]
        known.stored = max(known.stored, highest)
        known.pushed = max(known.pushed, known.stored)
        while known.under_way and known.under_way[0][0] <= highest:
            known.under_way.popleft()
        self._reached(end_offset)

    def failed(self, producer: str) -> None:
        """What was sent on last was refused or failed. What else was sent on has failed too or will: until the
        topic has read the log's end again, only what is stored counts."""
        known = self._names.get(producer)
        if known is not None:
            known.under_way = deque(entry for entry in known.under_way if not entry[1].done())
            known.pushed = max([known.stored, *(upto for upto, _ in known.under_way)])

    def held(self, producer: str, highest: int, place: HeldId) -> None:
        """The batch waits in the holding area, which is as good as stored."""
        known = self._names[producer]
        known.stored = max(known.stored, highest)
        known.pushed = max(known.pushed, known.stored)
        while known.under_way and known.under_way[0][0] <= highest:
            known.under_way.popleft()
        self.passed_held(place)

    def passed_held(self, place: HeldId) -> None:
        """A batch without an origin is held."""
        self.known_held[place.ledger] = max(self.known_held.get(place.ledger, 0), place.entry + 1)
        self._reached(self.known_to)

    def passed(self, end_offset: int) -> None:
        """A batch without an origin was stored."""
        self._reached(end_offset)

    def _reached(self, end_offset: int) -> None:
        if not self._in_doubt():  # else `catch_up` has to read what failed appends left before this offset
            self.known_to = max(self.known_to, end_offset)
        self._since_snapshot += 1
        if self._since_snapshot >= self._snapshot_every:
            self._since_snapshot = 0
            self._changed()

    async def catch_up(self, log: _Source, now_ms: int) -> None:
        """Read what was stored and is not taken into account yet."""
        self.known_to = max(self.known_to, log.start_offset)
        while self.known_to < log.end_offset:
            for batch in await log.read(self.known_to, 1 << 20):
                self._learn(batch.origin, now_ms)
                self.known_to = batch.end_offset

    async def begin(self, log: _Source, now_ms: int) -> None:
        """Begin without a snapshot. Where deduplication was always on, one was written before the log grew long: a
        long one whose last batch names no origin was written without, and has nothing to tell."""
        length = log.end_offset - log.start_offset
        if length > _ALWAYS_READ:
            last = await log.read(log.end_offset - 1, 1)
            if last and last[0].origin is None and not last[0].flags & BatchFlags.LOST:
                self.known_to = log.end_offset
        await self.catch_up(log, now_ms)

    async def catch_up_held(self, holding: _Holding, now_ms: int) -> None:
        """The same for what waits in the holding area."""
        positions = holding.positions()
        async for origin in holding.origins_since(self.known_held):
            self._learn(origin, now_ms)
        self.known_held = positions

    def _learn(self, origin: object, now_ms: int) -> None:
        if not isinstance(origin, Origin) or origin.sequence < 0:
            return
        known = self._names.get(origin.producer)
        if known is None:
            self._names[origin.producer] = _Known(origin.sequence, now_ms)
        else:
            known.stored = max(known.stored, origin.sequence)
            known.pushed = max(known.pushed, known.stored)

    def forget_idle(self, now_ms: int, connected: Callable[[str], bool]) -> None:
        """Names that sent nothing for long, and are not connected, cost nothing more."""
        for name, known in list(self._names.items()):
            if now_ms - known.seen_ms > self._forget_ms and not known.under_way and not connected(name):
                del self._names[name]

    def to_bytes(self) -> bytes:
        """The snapshot."""
        names = {name: (known.stored, known.seen_ms) for name, known in self._names.items() if known.stored >= 0}
        return encode_dedup(DedupSnapshot(self.known_to, self.known_held, names))

    def load(self, data: bytes) -> None:
        """Begin with a snapshot."""
        snapshot = decode_dedup(data)
        self.known_to, self.known_held = snapshot.known_to, dict(snapshot.held)
        self._names = {name: _Known(stored, seen_ms) for name, (stored, seen_ms) in snapshot.names.items()}


def answer_duplicate(receipt: "asyncio.Future[Receipt]", first: "asyncio.Future[int]") -> None:
    """Once the first one is stored, the second is a duplicate of it."""
    if receipt.done():
        return
    if first.cancelled() or first.exception() is not None:
        receipt.set_exception(DuplicateInDoubtError("whether the message is stored is not known"))
    else:
        receipt.set_result(Receipt(-1, (-1, -1), duplicate=True))


def mirror(answer: "asyncio.Future[int]", done: "asyncio.Future[Any]") -> None:
    """Tell deduplication. A held batch is as good as stored."""
    if done.cancelled() or done.exception() is not None:
        answer.set_exception(done.exception() or DuplicateInDoubtError("it was not stored"))
        answer.exception()
    else:
        answer.set_result(-1)


class DedupSwitch:
    """Has the deduplication while it is on, for the publisher to ask. `in_doubt`: see `Deduplication`."""

    def __init__(
        self,
        context: BrokerContext,
        stream: Stream,
        state: StateLog,
        holding: Callable[[], Holding | None],
        in_doubt: Callable[[], bool],
    ) -> None:
        #: None while it is off.
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
            self._state.delete(KEY)  # it would not know what is stored from now on
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
        if snapshot is not None and not self._state.damaged:  # else the log itself says all that is left to say
            dedup.load(snapshot)
        else:
            await dedup.begin(self._stream, self._clock.wall_ms())
        await self._catch_up(dedup)
        self.current = dedup  # nothing was stored since it caught up: there was no wait in between

    async def catch_up(self) -> None:
        """Bring deduplication, if it is on, up to date with what is held and stored."""
        if self.current is not None:
            await self._catch_up(self.current)

    async def _catch_up(self, dedup: Deduplication) -> None:
        holding, now_ms = self._holding(), self._clock.wall_ms()
        if holding is not None:
            await dedup.catch_up_held(holding, now_ms)
        await dedup.catch_up(self._stream, now_ms)

    def mark(self) -> None:
        """Have the state write a snapshot with what it writes next."""
        if self.current is not None:
            self._state.mark(KEY, self.current.to_bytes)
