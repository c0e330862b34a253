"""Dead letters of a queue: what it gives up goes to the dead letter exchange, and is then acknowledged.

What is to die is decided, routed and, if the queue is durable, written to its state before anything is sent: after
a crash the same letters go to the same queues, which know the parcel if they have it. So a dead letter exists
once, and a message that has become one is never delivered again (docs/adr/0030).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from pyroaring import BitMap64

from weir.broker.api import NamespaceExchanges, Queue, QueueMessages
from weir.broker.dispatch.feed import Source
from weir.broker.queues.keeping.letters import Deaths, LetterMaker
from weir.broker.queues.keeping.parcels import FIRST_ID, ID_BITS, PARCEL_KEY, Parcel, Sent
from weir.model.batch import Stamp
from weir.model.bits import Run
from weir.model.errors import (
    ExchangeNotFoundError,
    InvalidNameError,
    QueueNotFoundError,
    StreamClosedError,
    StreamFencedError,
    WeirError,
    WireError,
)
from weir.model.ids import Buffer
from weir.model.queues import QueueRules
from weir.runtime import Runtime
from weir.runtime.tasks import TaskScope
from weir.runtime.turns import Turns
from weir.wire.amqp.death import DeadLetter, Reason
from weir.wire.messages import decode_messages, encode_message, join_messages

log = logging.getLogger(__name__)

#: Of one parcel: few enough for one entry and a small record, many enough that its two waits are cheap.
_MOST_LETTERS = 500
_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0


class LetterRoutes(Protocol):
    """Where letters can go: the exchanges and queues of the namespace."""

    async def exchanges(self) -> NamespaceExchanges: ...

    async def target(self, name: str) -> Queue:
        """Whoever has it. QueueNotFoundError."""


class ParcelStore(Protocol):
    """What `weir.stream.state.StateLog` offers, as far as parcels need it."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes) -> None: ...

    async def flush(self) -> None: ...


class DeadLetters:
    """Of one queue. `settle`: acknowledge messages; `store`: None if the queue is gone with its broker anyway."""

    def __init__(
        self,
        queue: str,
        source: Source,
        routes: LetterRoutes,
        *,
        settle: Callable[[Sequence[Run]], None],
        store: ParcelStore | None,
        runtime: Runtime,
        tasks: TaskScope,
    ) -> None:
        self._queue = queue
        self._maker = LetterMaker(queue, source, runtime.clock)
        self._routes = routes
        self._settle = settle
        self._store = store
        self._clock = runtime.clock
        self._rng = runtime.rng
        self._turns = Turns(runtime.clock)
        self._tasks = tasks
        self._waiting: deque[Deaths] = deque()
        #: All that is given up and not acknowledged yet.
        self._offsets = BitMap64()
        self._dropped = BitMap64()
        self._sent: Sent | None = None
        self._worker: asyncio.Task[None] | None = None
        #: How many messages became letters, and how many were dropped: there was no place for them.
        self.moved = 0
        self.dropped = 0
        self._load()

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, offset: int) -> bool:
        """Whether a message is given up: it is not to be delivered."""
        return offset in self._offsets

    @property
    def offsets(self) -> BitMap64:
        return self._offsets

    def _load(self) -> None:
        """What the former broker was about to send is sent first."""
        data = None if self._store is None else self._store.get(PARCEL_KEY)
        if data is None:
            return
        try:
            self._sent = Sent.decode(data)
        except WireError as bad:
            log.error("queue %s: dead letters under way are lost sight of: %s", self._queue, bad)
            return
        if self._sent.parcel is not None:
            for runs in self._sent.parcel.targets.values():
                for first, end in runs:
                    self._offsets.add_range(first, end)
            self._wake()

    def take(self, offsets: BitMap64, reason: Reason, rules: QueueRules) -> None:
        """These are given up; they are aside, or will be once the caller has returned."""
        offsets = offsets - self._offsets
        if not offsets:
            return
        self._offsets |= offsets
        if rules.dead_letter_exchange is None:
            if not self._dropped:
                asyncio.get_running_loop().call_soon(self._drop)
            self._dropped |= offsets
            return
        now_ms = self._clock.wall_ms()
        deaths = Deaths(offsets, reason, rules.dead_letter_exchange, rules.dead_letter_key, now_ms)
        if self._waiting and self._waiting[-1].like(deaths):
            self._waiting[-1].offsets |= offsets
        else:
            self._waiting.append(deaths)
        self._wake()

    def _drop(self) -> None:
        gone, self._dropped = self._dropped, BitMap64()
        self.dropped += len(gone)
        self._done(gone)

    def _done(self, offsets: BitMap64) -> None:
        self._offsets -= offsets
        self._settle(list(runs_in(offsets)))

    def _wake(self) -> None:
        if self._worker is None:
            self._worker = self._tasks.spawn(self._run(), "dead letters")

    async def _run(self) -> None:
        pause_s = _PAUSE_S
        try:
            while self._waiting or (self._sent is not None and self._sent.parcel is not None):
                try:
                    await self._send_next()
                    pause_s = _PAUSE_S
                except (StreamClosedError, StreamFencedError):
                    return  # the next broker goes on
                except WeirError as failed:
                    log.warning("queue %s: dead letters wait: %s", self._queue, failed)
                    await self._clock.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            self._worker = None

    async def _send_next(self) -> None:
        """One parcel, from the decision to the acknowledgement."""
        if self._sent is None or self._sent.parcel is None:
            letters = await self._decide()
        else:
            letters = await self._made_again(self._sent.parcel)
        sent = self._sent
        if sent is None or sent.parcel is None:
            return  # there was no place for any of them
        if self._store is not None:
            await self._store.flush()
        await self._deliver(letters, sent.parcel.targets, sent.stamp)
        self._arrived(_all_in(sent.parcel.targets))

    async def _decide(self) -> "Mapping[int, DeadLetter | None]":
        """Which die next, and where they go: from here on these letters go there, whatever happens."""
        deaths = self._waiting[0]
        letters = await self._maker.letters(BitMap64(islice(deaths.offsets, _MOST_LETTERS)), deaths)
        targets = await self._routed(letters, deaths.exchange)
        if targets:
            before = self._sent or Sent(FIRST_ID + self._rng.getrandbits(ID_BITS), 0)
            parcel = Parcel(deaths.reason, deaths.exchange, deaths.key, deaths.at_ms, targets)
            self._sent = Sent(before.sender, before.number + 1, parcel)
            if self._store is not None:
                self._store.put(PARCEL_KEY, self._sent.encode())
        looked_at = BitMap64(letters)
        deaths.offsets -= looked_at
        if not deaths.offsets:
            self._waiting.popleft()
        lost = looked_at - _all_in(targets)
        if lost:
            self.dropped += len(lost)
            self._done(lost)
        return letters

    async def _made_again(self, parcel: Parcel) -> "Mapping[int, DeadLetter | None]":
        going = _all_in(parcel.targets)
        deaths = Deaths(going, parcel.reason, parcel.exchange, parcel.key, parcel.at_ms)
        letters: dict[int, DeadLetter | None] = {}
        while left := going - BitMap64(letters):
            letters |= await self._maker.letters(left, deaths)
        return letters

    def _arrived(self, offsets: BitMap64) -> None:
        """The acknowledgements and the word that nothing is under way are written together, or not at all."""
        if self._sent is not None:
            self._sent = Sent(self._sent.sender, self._sent.number)
            if self._store is not None:
                self._store.put(PARCEL_KEY, self._sent.encode())
        self.moved += len(offsets)
        self._done(offsets)

    # --- sending them -------------------------------------------------------------------------------------------

    async def _routed(self, letters: "Mapping[int, DeadLetter | None]", exchange: str) -> dict[str, list[Run]]:
        """Which go to which queue, of those that there are."""
        exchanges = await self._routes.exchanges()
        going: dict[str, BitMap64] = {}
        for offset, letter in letters.items():
            for name in () if letter is None else self._queues_of(letter, exchange, exchanges):
                going.setdefault(name, BitMap64()).add(offset)
        for name in list(going):
            try:
                await self._routes.target(name)
            except (QueueNotFoundError, InvalidNameError):
                del going[name]
        return {name: list(runs_in(offsets)) for name, offsets in going.items()}

    def _queues_of(self, letter: DeadLetter, exchange: str, exchanges: NamespaceExchanges) -> list[str]:
        try:
            routed = exchanges.route(exchange, letter.keys, letter.headers)
        except ExchangeNotFoundError:
            return []
        cycles = [name for name in routed.queues if letter.cycles(name)]
        if cycles:
            log.info("queue %s: a message goes in circles, and not to %s again", self._queue, ", ".join(cycles))
        return [name for name in routed.queues if name not in cycles]

    async def _deliver(
        self, letters: "Mapping[int, DeadLetter | None]", targets: Mapping[str, Sequence[Run]], stamp: Stamp | None
    ) -> None:
        """To all targets; raises if one of them has not got them. Those that have do not take them again."""
        encoded: dict[int, bytes] = {}
        handing: list[Coroutine[Any, Any, None]] = []
        for name, runs in targets.items():
            there = [
                (offset, letter)
                for first, end in runs
                for offset in range(first, end)
                if (letter := letters.get(offset)) is not None
            ]
            for offset, letter in there:
                if offset not in encoded:
                    encoded[offset] = encode_message(letter.message)
            messages = _messages([letter for _, letter in there], [encoded[offset] for offset, _ in there], stamp)
            if there:
                handing.append(self._hand_over(name, messages))
            await self._turns.next()
        for ended in await asyncio.gather(*handing, return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended

    async def _hand_over(self, name: str, messages: QueueMessages) -> None:
        """What the queue refuses because it is full is gone: it said so itself."""
        try:
            queue = await self._routes.target(name)
            await queue.wait_capacity()
            await queue.publish(messages)
        except QueueNotFoundError:
            log.info("queue %s: dead letters found queue %s gone", self._queue, name)

    # --- what never was in the queue ----------------------------------------------------------------------------

    def refuse(self, encoded: Sequence[Buffer], rules: QueueRules) -> None:
        """Messages that the queue had no room for, and that go to the dead letter exchange instead. Their
        publisher is told that they were refused: nobody counts on them."""
        if rules.dead_letter_exchange is None:
            self.dropped += len(encoded)
        else:
            deaths = Deaths(
                BitMap64(),
                Reason.MAX_LENGTH,
                rules.dead_letter_exchange,
                rules.dead_letter_key,
                self._clock.wall_ms(),
            )
            self._tasks.spawn(self._send_refused(list(encoded), deaths), "refused messages")

    async def _send_refused(self, encoded: Sequence[Buffer], deaths: Deaths) -> None:
        try:
            messages = decode_messages(join_messages(encoded))
            letters = {place: self._maker.letter(message, deaths) for place, message in enumerate(messages)}
            targets = await self._routed(letters, deaths.exchange)
            await self._deliver(letters, targets, None)
            self.moved += len(_all_in(targets))
        except WeirError as failed:
            log.warning("queue %s: refused messages are not dead letters: %s", self._queue, failed)


def _messages(letters: Sequence[DeadLetter], encoded: Sequence[bytes], stamp: Stamp | None) -> QueueMessages:
    return QueueMessages(
        encoded,
        persistent=any(letter.persistent for letter in letters),
        stamp=stamp,
    )


def runs_in(offsets: BitMap64) -> Iterator[Run]:
    """Neighbours as [first, end), ascending."""
    first = end = -1
    for offset in offsets:
        if offset != end:
            if end >= 0:
                yield first, end
            first = offset
        end = offset + 1
    if end >= 0:
        yield first, end


def _all_in(targets: Mapping[str, Sequence[Run]]) -> BitMap64:
    found = BitMap64()
    for runs in targets.values():
        for first, end in runs:
            found.add_range(first, end)
    return found
