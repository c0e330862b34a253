"""State of a topic's idempotent producers and transactions: updated from its log, with snapshots in its state.

A topic without stamped batches (producer id, epoch, sequence) has no such state and no cost. The first stamped
batch waits until the topic's state durably records the offset at which stamps begin; each opening of the topic
reads from that offset, or from the last snapshot.

`TransactionVerification` verifies with the coordinator that a producer's transaction is open before the first
batch of it is
stored. A coordinator on this broker answers at once. Another one answers over the network, and the producer's
batches wait meanwhile. A marker that arrives during the request voids the answer, which may concern the
transaction that the marker ends: the broker repeats the request, and the marker waits for it.

The round (`TransactionEnd`) distinguishes a late marker from the expected one. The round of a transaction that was
open when this broker loaded the topic is unknown: its coordinator must confirm the marker.
"""

import asyncio
import logging
from collections.abc import Callable

from pyroaring import BitMap64

from weir.broker.api.producers import Outgoing
from weir.broker.api.topics import ProducerInfo
from weir.broker.context import BrokerContext
from weir.broker.log.producer_state import Pending, ProducerStates
from weir.broker.log.transaction_index import PIECE, TransactionIndex
from weir.broker.ports import TransactionGate
from weir.model.batch import Batch, BatchFlags, Stamp
from weir.model.check import check
from weir.model.errors import (
    OffsetTrimmedError,
    StreamClosedError,
    StreamFencedError,
    TransactionStateError,
    WeirError,
)
from weir.model.topics import TopicName
from weir.model.transactions import Stored
from weir.runtime.tasks import TaskScope
from weir.stream.log import Stream
from weir.stream.state_log import StateLog
from weir.stream.unwritten import is_gap


class _Question:
    """A pending request to a coordinator. `void`: a marker arrived after the request."""

    __slots__ = ("answer", "void")

    def __init__(self) -> None:
        self.void = False
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class TransactionVerification:
    """The rounds of the open transactions of one topic."""

    def __init__(self, gate: TransactionGate, name: TopicName, tasks: TaskScope) -> None:
        self._gate = gate
        self._name = name
        self._tasks = tasks
        self._rounds: dict[int, int] = {}
        self._asked: dict[int, _Question] = {}

    def admit(self, stamp: Stamp) -> "asyncio.Future[None] | None":
        """Check whether the producer's transaction may begin on this topic: None if it may; raises if not; a
        future with the same results if the coordinator is remote."""
        found = self._gate.admit(stamp, self._name)
        if isinstance(found, WeirError):
            raise found
        if found is not None:
            self._rounds[stamp.producer_id] = found
            return None
        asked = self._asked.get(stamp.producer_id)
        if asked is None:
            asked = self._asked[stamp.producer_id] = _Question()
            self._tasks.spawn(self._verify(asked, stamp), "ask about a transaction")
        return asked.answer

    async def _verify(self, question: _Question, stamp: Stamp) -> None:
        failure: WeirError | None = StreamClosedError(f"{self._name} is closing")
        try:
            while True:
                question.void = False
                found = await self._gate.verify(stamp, self._name)
                if not question.void:
                    break
            self._rounds[stamp.producer_id] = found
            failure = None
        except WeirError as refused:
            failure = refused
        finally:
            del self._asked[stamp.producer_id]
            if failure is None:
                question.answer.set_result(None)
            else:
                question.answer.set_exception(failure)
                question.answer.exception()  # mark it as retrieved: the waiting batches may be gone

    async def answered(self, producer_id: int) -> None:
        """A marker has arrived: repeat a pending request, and wait for its answer."""
        while (question := self._asked.get(producer_id)) is not None:
            question.void = True
            await asyncio.wait([question.answer])

    def is_late(self, producer_id: int, marker_round: int) -> bool | None:
        """Whether the marker belongs to an earlier transaction than the open one; None if the round is unknown."""
        known = self._rounds.get(producer_id)
        return None if known is None else marker_round < known

    def ended(self, producer_id: int) -> None:
        """Forget the round: the marker is stored."""
        self._rounds.pop(producer_id, None)


log = logging.getLogger(__name__)

_PRODUCERS_KEY = "producers"
_OPEN_KEY = "transactions/open"
_DELAYS_KEY = "transactions/delays"
_PIECE_KEY = "transactions/piece/"
_READ_BYTES = 1 << 20

#: The flags of most batches: an identity check is cheaper than flag arithmetic.
_PLAIN = BatchFlags.NONE

#: Called when the topic can store stamped batches, or with the error if it cannot.
Armed = Callable[[WeirError | None], None]


class ProducerStateManager:
    """Applies batches in log order only: a batch after a gap waits until a read has closed the gap.

    `changed`: called when the stable offset has moved without an append. `committed`: called when committed
    delayed messages must move to the holding area. `lost`: called when messages are lost, possibly with markers
    among them.
    """

    def __init__(
        self,
        context: BrokerContext,
        name: TopicName,
        *,
        stream: Stream,
        state: StateLog,
        tasks: TaskScope,
        changed: Callable[[], None],
        committed: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        settings = context.settings
        self.rounds = TransactionVerification(context.transactions, name, tasks)
        self._clock = context.runtime.clock
        self._pause_s = settings.read_pause_s
        self._every = settings.stamps_snapshot_every
        self._every_bytes = settings.stamps_snapshot_bytes
        self._name = name
        self._stream = stream
        self._state = state
        self._tasks = tasks
        self._changed = changed
        self.states = ProducerStates(forget_ms=int(settings.stamps_forget_s * 1000), most=settings.stamps_most)
        self._index = TransactionIndex()
        self._committed = committed
        self._lost = lost
        #: Whether the topic can store stamped batches: its state records where to read for them.
        self.armed = False
        self._following = False  # whether the log reports stored batches
        #: The state covers all batches before this offset.
        self._known_to = 0
        self._saved_to = 0
        self._since_saved = self._bytes_since_saved = 0
        self._waiting: list[Armed] = []
        self._catching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Load the last snapshot, if any, and read the log from there."""
        snapshot = self._state.get(_PRODUCERS_KEY)
        if self._state.damaged:
            # The rest of a damaged snapshot may be inconsistent: rebuild the state from the start of the log.
            self.armed = True
            self._follow()
            await self.catch_up()
            return
        if snapshot is None:
            return
        self._known_to = self._saved_to = self.states.load(snapshot)
        transactions = self._state.get(_OPEN_KEY)
        if transactions is not None:
            self._index.load_open(transactions)
        delays = self._state.get(_DELAYS_KEY)
        if delays is not None:
            self._index.delays.load(delays)
        for key in self._state.keys(_PIECE_KEY):
            self._index.load_piece(self._state.get(key) or b"")
        self._index.trim(self._stream.start_offset)
        if self._stream.unwritten:
            self._index.hidden -= self._stream.unwritten.offsets
        self.armed = True
        self._follow()
        await self.catch_up()

    def arm(self, then: Armed) -> None:
        """Prepare for stamped batches; call the functions in the order of the calls when that is done."""
        self._waiting.append(then)
        if not self._following:
            self._known_to = self._stream.end_offset
            self._follow()
            self._save()
            self._tasks.spawn(self._arm(), "arm")

    def _follow(self) -> None:
        self._following = True
        self._stream.on_stored(self._stored)

    async def _arm(self) -> None:
        failure: WeirError | None = StreamClosedError(f"{self._name} is closing")
        try:
            await self._state.flush()
            failure, self.armed = None, True
        except WeirError as failed:
            failure = failed
        finally:
            waiting, self._waiting = self._waiting, []
            for then in waiting:
                then(failure)

    # --- checks -------------------------------------------------------------------------------------------------

    def judge(self, stamp: Stamp, outgoing: Outgoing) -> Stored | Pending | None:
        """Return None for a new batch, which must then be admitted, or the first copy of a duplicate. Raises
        StaleEpochError or OutOfOrderSequenceError."""
        return self.states.judge(stamp, outgoing.count)

    def admit(self, stamp: Stamp, outgoing: Outgoing) -> "asyncio.Future[None] | None":
        """Check that the batch fits the producer's transaction state: None if so, a future if the coordinator must
        answer first. Raises TransactionStateError or the coordinator's error."""
        is_open = self.is_open(stamp.producer_id)
        if is_open and not outgoing.transactional:
            raise TransactionStateError(f"producer {stamp.producer_id} has an open transaction")
        return self.rounds.admit(stamp) if outgoing.transactional and not is_open else None

    def is_open(self, producer_id: int) -> bool:
        """Whether the producer has an open transaction here, including pending batches."""
        pending = self.states.pending_transaction(producer_id)
        return self._index.is_open(producer_id) if pending is None else pending

    # --- queries ------------------------------------------------------------------------------------------------

    @property
    def index(self) -> TransactionIndex:
        return self._index

    @property
    def stable_offset(self) -> int:
        end = self._stream.end_offset
        if not self._following or (self._known_to >= end and not self._index.any_open):
            return end
        return max(self._index.stable(min(end, self._known_to)), self._stream.start_offset)

    @property
    def behind(self) -> bool:
        """Whether the log has batches that the state does not cover."""
        return self._following and self._known_to < self._stream.end_offset

    @property
    def unmoved_from(self) -> int:
        """The first offset with a committed delayed message that is not in the holding area yet."""
        first = self._index.delays.first
        return self._stream.end_offset if first is None else first

    def infos(self) -> list[ProducerInfo]:
        return self.states.infos(self._index.open_since)

    # --- following the log --------------------------------------------------------------------------------------

    def _stored(self, batches: list[Batch]) -> None:
        for batch in batches:
            if batch.base_offset != self._known_to:
                return  # after a gap: a later read applies it in order
            self._learn(batch)

    def _learn(self, batch: Batch) -> None:
        check(batch.end_offset > self._known_to, "stamps are applied once, in log order")
        self._known_to = batch.end_offset
        if batch.stamp is None:
            if batch.flags is not _PLAIN:
                self._index.delays.released(batch)
                if batch.flags & BatchFlags.LOST:
                    self._lost()
                elif is_gap(batch):
                    self._index.hide(batch.base_offset, batch.end_offset)
            return
        if batch.flags & BatchFlags.RELEASED:  # its sequence numbers were used long ago
            self.states.catch_up(batch.stamp, batch.count, batch.append_ms)
        else:
            self.states.learn(batch)
            self._index.learn(batch)
            if batch.flags & BatchFlags.CONTROL:
                self.rounds.ended(batch.stamp.producer_id)
            if self._index.delays.unmoved:
                self._committed()
        self._since_saved += 1
        self._bytes_since_saved += len(batch)
        if self._since_saved >= self._every or self._bytes_since_saved >= self._every_bytes:
            self._save()

    async def catch_up(self) -> None:
        """Apply the batches of the log that the state does not cover."""
        while self.behind:
            self._known_to = max(self._known_to, self._stream.start_offset)
            try:
                for batch in await self._stream.read(self._known_to, _READ_BYTES):
                    if batch.end_offset > self._known_to:
                        self._learn(batch)
            except OffsetTrimmedError:
                continue  # the start has moved

    def catch_up_soon(self) -> None:
        """`catch_up` in the background; calls `changed` at the end."""
        if self._catching is None:
            self._catching = self._tasks.spawn(self._catch_up(), "catch up with stamps")

    async def _catch_up(self) -> None:
        try:
            while self.behind:
                try:
                    await self.catch_up()
                except (StreamClosedError, StreamFencedError):
                    return
                except WeirError as failed:
                    log.warning("%s: reading the log for producer state failed, retrying: %s", self._name, failed)
                    await self._clock.sleep(self._pause_s)
        finally:
            self._catching = None
        self._changed()

    # --- snapshots ----------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a snapshot if the state has changed; durable with the state's next flush."""
        if self._following and (self._saved_to != self._known_to or self._index.delays.unsaved):
            self._save()

    def save_moves(self) -> None:
        """Write a snapshot if a delayed message has moved to the holding area since the last one: if it is
        cancelled now, it must not move again after a crash."""
        if self._index.delays.unsaved:
            self._save()

    def _save(self) -> None:
        self._since_saved = self._bytes_since_saved = 0
        check(self._known_to >= self._saved_to, "a snapshot of stamps is never older than the one before it")
        self._saved_to = self._known_to
        self._state.put(_PRODUCERS_KEY, self.states.to_bytes(self._known_to))
        self._state.put(_OPEN_KEY, self._index.open_bytes())
        delays = self._index.delays.to_bytes()
        if delays is None:
            self._state.delete(_DELAYS_KEY)
        else:
            self._state.put(_DELAYS_KEY, delays)
        in_memory = self._stream.unwritten.offsets if self._stream.unwritten else BitMap64()
        for piece, data in self._index.changed_pieces(in_memory).items():
            self._state.put(_key_of(piece), data)

    def trimmed(self) -> None:
        """Drop state before the new start of the log."""
        if not self._following:
            return
        start = self._stream.start_offset
        self._index.trim(start)
        for key in self._state.keys(_PIECE_KEY):
            if key < _key_of(start // PIECE):
                self._state.delete(key)

    def forget_idle(self, now_ms: int, log_bytes: int) -> None:
        """Drop idle producers, and limit what the next opening has to read. `log_bytes`: approximate size of the
        log after the last snapshot."""
        if not self._following:
            return
        forgot = self.states.forget_idle(now_ms, self._index.is_open)
        if forgot or (log_bytes >= self._every_bytes and self._saved_to != self._known_to):
            self._save()

    def forgotten(self, first: int, end: int) -> None:
        """Hide messages in [first, end) that were in memory only, and that no subscription needs any more."""
        self._index.hide(first, end)

    @property
    def saved_to(self) -> int:
        """The offset up to which the last snapshot covers the log."""
        return self._saved_to


def _key_of(piece: int) -> str:
    return f"{_PIECE_KEY}{piece:012d}"
