"""The transactions of one shard: in memory, written down, ended, and gone with the shard.

The shards of transactional ids that are this broker's: loaded, looked after, lost.

Ends that begin a new epoch: what a producer means that asks for one, perhaps not for the first time.

Each transaction of such a producer has an epoch of its own, so that what comes late is never taken for a part of
the next one. The epoch is counted on together with the decision, so markers carry the new one. A producer that was
not answered asks again as who it was before: that is known from the record, after a crash, too.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Protocol, TypeVar

from weir.broker.api.broker import Owner
from weir.broker.api.transactions import ProducerIdentity
from weir.broker.coordination.shards import CoordinatorShard, CoordinatorShards
from weir.broker.peers.peer_calls import PeerCalls, PeerHandlers
from weir.broker.ports import TransactionGate
from weir.broker.transactions.transaction import (
    Transaction,
    TransactionEvent,
    TransactionSettings,
    decode_transaction,
    encode_transaction,
)
from weir.model.batch import Stamp
from weir.model.check import check
from weir.model.errors import (
    NamespaceNotFoundError,
    NotAllowedError,
    NotInTransactionError,
    NotOwnerError,
    PeerBusyError,
    PeerUnavailableError,
    StaleEpochError,
    StreamError,
    StreamTerminatedError,
    TenantNotFoundError,
    TopicClosedError,
    TopicNotFoundError,
    TransactionBusyError,
    TransactionStateError,
    UnknownProducerError,
    WeirError,
)
from weir.model.topics import SINK_PREFIX, TopicName, full_name
from weir.model.transactions import CommittedOffset, Fate, TransactionEnd, TransactionState
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.wire.peer.calls import Done
from weir.wire.peer.coordinator_calls import AskFate, ConfirmEnd, FateAnswer, Verified, VerifyWrite
from weir.wire.snapshots.transactions import decode_sink, encode_sink

log = logging.getLogger(__name__)

_RECORD = "transaction/"
_SINK = "sink/"
#: Which query wrote a sink's last epoch. Apart from the epoch, whose form older brokers read.
_SINK_QUERY = "sink-query/"
#: What is gone, or can never take anything again, needs no decision.
_GONE = (TopicNotFoundError, NamespaceNotFoundError, TenantNotFoundError, StreamTerminatedError)
#: A round is the shard's epoch, and below it, in so many bits, how many transactions it knows of the id.
ROUND_BITS = 40


class Positions(Protocol):
    """What `weir.broker.groups.group_offsets.GroupOffsets` offers, as far as transactions need it."""

    def adopt(
        self,
        shard: CoordinatorShard,
        group: str,
        producer_id: int,
        positions: Mapping[TopicName, CommittedOffset],
    ) -> None: ...

    async def prepare(
        self,
        group: str,
        producer_id: int,
        positions: Mapping[TopicName, CommittedOffset],
        *,
        join: Callable[[], Awaitable[int]],
        check: Callable[[], None] = ...,
    ) -> None: ...

    async def end(self, group: str, end: TransactionEnd) -> None: ...


class TakesPart(Protocol):
    """Partitions and groups, wherever they are: they are told how a transaction ends."""

    async def end_transaction(self, part: TopicName, end: TransactionEnd) -> None: ...

    async def end_in_group(self, group: str, end: TransactionEnd) -> None: ...


class TransactionShard:
    """Made when the shard is loaded: what was decided and not ended is ended, what was open goes on."""

    def __init__(
        self,
        shard: CoordinatorShard,
        takes_part: TakesPart,
        positions: Positions,
        clock: Clock,
        settings: TransactionSettings,
    ) -> None:
        self.shard = shard
        self._takes_part = takes_part
        self._clock = clock
        self._settings = settings
        self._tasks = TaskScope("transactions")
        self.by_id: dict[str, Transaction] = {}
        self.by_producer: dict[int, Transaction] = {}
        self._endings: dict[str, asyncio.Task[None]] = {}
        self._ids_of: Counter[str] = Counter()
        self._sinks_of: Counter[str] = Counter()
        for key in shard.state.keys(_SINK):
            self._sinks_of[(self.sink(key.removeprefix(_SINK)) or (0, ""))[1]] += 1
        for key in shard.state.keys(_RECORD):
            name = key.removeprefix(_RECORD)
            self.add(decode_transaction(name, shard.state.get(key) or b""))
        for transaction in self.by_id.values():
            if any(transaction.groups.values()):  # as they were kept before there were several shards
                for group, moved in transaction.groups.items():
                    positions.adopt(shard, group, transaction.producer_id, moved)
                transaction.groups = {group: {} for group in transaction.groups}
                self.put(transaction)
            if transaction.decided:
                self._end_soon(transaction)

    @property
    def alive(self) -> bool:
        return self.shard.alive

    def round_of(self, transaction: Transaction) -> int:
        """Which of its producer's transactions it is (`TransactionEnd`)."""
        return self.shard.epoch << ROUND_BITS | transaction.serial

    async def close(self) -> None:
        await self._tasks.close()

    # --- keeping ----------------------------------------------------------------------------------------

    def add(self, transaction: Transaction) -> None:
        self.by_id[transaction.id] = transaction
        self.by_producer[transaction.producer_id] = transaction
        self._ids_of[transaction.role] += 1

    def give(self, transaction: Transaction, role: str) -> None:
        """It is this role's from now on."""
        self._ids_of[transaction.role] -= 1
        self._ids_of[role] += 1
        transaction.role = role

    def ids_of(self, role: str) -> int:
        return self._ids_of[role]

    def sinks_of(self, role: str) -> int:
        return self._sinks_of[role]

    def rename(self, transaction: Transaction, producer_id: int, last_epoch: int) -> None:
        """It goes on under another producer id."""
        check(producer_id not in self.by_producer, "a producer id belongs to one transactional id")
        del self.by_producer[transaction.producer_id]
        transaction.rename(producer_id, last_epoch)
        self.by_producer[producer_id] = transaction

    def forget(self, transaction: Transaction) -> None:
        del self.by_id[transaction.id]
        del self.by_producer[transaction.producer_id]
        self._ids_of[transaction.role] -= 1
        self.shard.state.delete(_RECORD + transaction.id)

    def put(self, transaction: Transaction) -> None:
        """Durable with the next flush, together with everything else that is put before it."""
        self.shard.state.put(_RECORD + transaction.id, encode_transaction(transaction))

    def sink(self, sink: str) -> tuple[int, str] | None:
        """The last epoch that the sink has written, and the role whose sink it is."""
        data = self.shard.state.get(_SINK + sink)
        return None if data is None else decode_sink(data)

    def sink_query(self, sink: str) -> str:
        """The id of the query that wrote the sink's last epoch; empty if it is not known."""
        data = self.shard.state.get(_SINK_QUERY + sink)
        return "" if data is None else data.decode()

    def put_sink_query(self, sink: str, query: str) -> None:
        self.shard.state.put(_SINK_QUERY + sink, query.encode())

    def put_sink(self, sink: str, epoch: int, role: str, *, again: bool = False) -> None:
        """`again`: another query continues the sink, with epochs of its own."""
        known = self.sink(sink)
        check(again or known is None or epoch > known[0], "a sink writes each epoch once, in their order")
        if known is not None:
            self._sinks_of[known[1]] -= 1
        self._sinks_of[role] += 1
        self.shard.state.put(_SINK + sink, encode_sink(epoch, role))

    def forget_sink(self, sink: str) -> None:
        known = self.sink(sink)
        if known is not None:
            self._sinks_of[known[1]] -= 1
        self.shard.state.delete(_SINK + sink)
        self.shard.state.delete(_SINK_QUERY + sink)

    async def flush(self) -> None:
        """NotOwnerError if another broker has the shard by now: then nothing of this counts here any more."""
        try:
            await self.shard.state.flush()
        except StreamError as lost:
            raise NotOwnerError(f"the coordinator has moved: {lost.what}") from lost

    # --- ending -----------------------------------------------------------------------------------------

    async def end(self, transaction: Transaction) -> None:
        """Make a decision durable, then carry it out; wait for that for a while."""
        await self.flush()
        if transaction.decided:
            await asyncio.wait([self._end_soon(transaction)], timeout=self._settings.end_wait_s)

    def _end_soon(self, transaction: Transaction) -> "asyncio.Task[None]":
        ending = self._endings.get(transaction.id)
        if ending is None:
            ending = self._tasks.spawn(self._end(transaction), f"end {transaction.id}")
            self._endings[transaction.id] = ending
        return ending

    async def _end(self, transaction: Transaction) -> None:
        """Only what is durably decided comes here. Done again after a crash, it does no harm: a partition that has
        nothing open gets no marker, and nobody else moves positions that are pending."""
        commit = transaction.state is TransactionState.PREPARE_COMMIT
        try:
            await self.shard.make_ready()
            work = [self._mark(part, transaction, commit=commit) for part in transaction.parts]
            work += [self._end_in_group(group, transaction, commit=commit) for group in transaction.groups]
            await asyncio.gather(*work)
            transaction.move(TransactionEvent.DONE, self._clock.wall_ms())
            if transaction.next_id >= 0:
                self.rename(transaction, transaction.next_id, transaction.last_epoch)
            self.put(transaction)  # durable with whatever the producer does next, or soon
        except (StreamError, NotOwnerError) as lost:
            log.info("the end of transaction %s is left to the next coordinator: %s", transaction.id, lost)
        finally:
            del self._endings[transaction.id]

    def fence(self, transaction: Transaction, *, asked: bool = False) -> None:
        """Shut the producer of an open transaction out, and decide to undo what it did."""
        transaction.count_epoch(asked=asked)
        transaction.move(TransactionEvent.ABORT, self._clock.wall_ms())
        self.put(transaction)

    def sweep(self) -> None:
        """Abort what is open for too long; go on with the end of what is decided, in case that something
        unforeseen has cut it short; forget ids that nobody uses."""
        now_ms, forget_ms = self._clock.wall_ms(), int(self._settings.forget_s * 1000)
        for transaction in list(self.by_id.values()):
            if transaction.state is TransactionState.ONGOING:
                if now_ms - transaction.started_ms > transaction.timeout_ms:
                    log.info("the transaction of %s was open for too long", transaction.id)
                    self.fence(transaction)
                    self._tasks.spawn(self._end_quietly(transaction), f"time out {transaction.id}")
            elif transaction.decided:
                if self.shard.state.durable:
                    self._end_soon(transaction)
            elif now_ms - transaction.updated_ms > forget_ms:
                self.forget(transaction)

    async def _end_quietly(self, transaction: Transaction) -> None:
        try:
            await self.end(transaction)
        except WeirError as failed:
            log.info("the transaction of %s is not aborted here: %s", transaction.id, failed)

    async def _mark(self, part: TopicName, transaction: Transaction, *, commit: bool) -> None:
        end = self._end_of(transaction, commit=commit)
        while True:
            try:
                return await self._takes_part.end_transaction(part, end)
            except _GONE as gone:
                log.warning("no marker of %s in %s: %s", transaction.id, part, gone)
                return None
            except WeirError as failed:
                log.info("the marker of %s in %s is tried again: %s", transaction.id, part, failed)
            await self._pause()

    async def _end_in_group(self, group: str, transaction: Transaction, *, commit: bool) -> None:
        end = self._end_of(transaction, commit=commit)
        while True:
            try:
                return await self._takes_part.end_in_group(group, end)
            except WeirError as failed:
                log.info("the end of %s in group %s is tried again: %s", transaction.id, group, failed)
            await self._pause()

    def _end_of(self, transaction: Transaction, *, commit: bool) -> TransactionEnd:
        return TransactionEnd(transaction.producer_id, transaction.epoch, commit, self.round_of(transaction))

    async def _pause(self) -> None:
        if not self.alive:
            raise NotOwnerError("the shard has moved")
        await self._clock.sleep(self._settings.retry_pause_s)


_COMMITTED = (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
_ENDED = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


class EndStep(Enum):
    """What is to be done."""

    #: Decide the open transaction.
    DECIDE = "decide"
    #: None is open, and a producer that gives up only needs a new epoch.
    SKIP = "skip"
    #: Nothing but to answer: that was decided before.
    REPEAT = "repeat"


def end_step(transaction: Transaction, identity: ProducerIdentity, *, commit: bool) -> EndStep:
    """UnknownProducerError, StaleEpochError: it is somebody else's by now. TransactionBusyError: the one before is
    still being ended. TransactionStateError: there is nothing to commit, or it was decided otherwise."""
    if identity == transaction.last and (transaction.decided or transaction.state in _ENDED):
        if commit is not (transaction.state in _COMMITTED):
            raise TransactionStateError(f"the transaction of {transaction.id!r} was decided otherwise")
        return EndStep.REPEAT
    check_identity(transaction, identity)
    if transaction.decided:
        raise TransactionBusyError(f"the last transaction of {transaction.id!r} is being ended")
    if transaction.state is TransactionState.ONGOING:
        return EndStep.DECIDE
    if commit:
        raise TransactionStateError(f"{transaction.id!r} has no open transaction: it is {transaction.state.value}")
    return EndStep.SKIP


def count_on(
    shard: TransactionShard, transaction: Transaction, step: EndStep, spare: int, now_ms: int, *, commit: bool
) -> None:
    """Take the step; durable with the shard's next flush. `spare`: a new producer id, if epochs are used up."""
    if step is EndStep.REPEAT:
        return
    if step is EndStep.DECIDE:
        transaction.move(TransactionEvent.COMMIT if commit else TransactionEvent.ABORT, now_ms)
        transaction.count_epoch(asked=True)
        transaction.next_id = spare
    else:
        transaction.move(TransactionEvent.SKIP, now_ms)
        if spare >= 0:
            shard.rename(transaction, spare, transaction.epoch)
        else:
            transaction.count_epoch(asked=True)
    shard.put(transaction)


def check_identity(transaction: Transaction, identity: ProducerIdentity) -> None:
    """UnknownProducerError, StaleEpochError unless this is the id's producer. One that has a new producer id by
    now may come under it before the end of its last transaction is carried out: TransactionBusyError."""
    if transaction.decided and identity == transaction.following != transaction.identity:
        raise TransactionBusyError(f"the last transaction of {transaction.id!r} is being ended")
    if transaction.producer_id != identity.producer_id:
        raise UnknownProducerError(f"{transaction.id!r} is not the transactional id of {identity.producer_id}")
    if transaction.epoch != identity.epoch:
        raise StaleEpochError(
            f"{transaction.id!r} is at epoch {transaction.epoch}, the producer at {identity.epoch}"
        )


R = TypeVar("R")
#: A coordinator that moves, or is out of reach, is asked so often, with pauses; then whoever asked is told.
_ATTEMPTS = 5
_MOVED = (NotOwnerError, TopicClosedError, PeerUnavailableError, PeerBusyError)


class TransactionShards:
    """`start`, then `close`. Stands at the gate of every topic."""

    def __init__(
        self,
        clock: Clock,
        shards: CoordinatorShards,
        gate: TransactionGate,
        settings: TransactionSettings,
        *,
        takes_part: TakesPart,
        positions: Positions,
        peers: PeerCalls | None = None,
    ) -> None:
        self._clock = clock
        self._shards = shards
        self._settings = settings
        self._takes_part = takes_part
        self._peers = peers
        #: The highest epoch of each shard, by its number, that topics here have heard of.
        self._heard: dict[int, int] = {}
        self._positions = positions
        self._loaded: dict[CoordinatorShard, TransactionShard] = {}
        self._tasks = TaskScope("transactions")
        gate.kept_by(self)
        shards.on_load(self._load)

    def start(self) -> None:
        self._tasks.spawn(self._sweep(), "look after")

    async def close(self) -> None:
        await self._tasks.close()
        for shard in list(self._loaded.values()):
            await shard.close()
        self._loaded.clear()

    # --- finding ----------------------------------------------------------------------------------------

    async def of(self, key: str) -> TransactionShard:
        """NotOwnerError if another broker has it."""
        return await self.at(await self._shards.number_of(key))

    async def at(self, number: int) -> TransactionShard:
        """The same, by its number."""
        loaded = self._loaded.get(await self._shards.at(number))
        if loaded is None:
            raise NotOwnerError("the coordinator of transactions is closed")
        return loaded

    async def all(self) -> list[TransactionShard]:
        await self._shards.used()
        return self._alive()

    async def owner(self, key: str) -> Owner:
        return await self._shards.owner(key)

    async def producer_id(self, number: int, taken: int) -> int:
        """See `CoordinatorShards.producer_id`."""
        return await self._shards.producer_id(number, taken)

    async def check_together(self, sink: str, names: Sequence[str]) -> None:
        """NotAllowedError unless all of these ids are in the sink's shard."""
        number = await self._shards.number_of(sink)
        for name in names:
            if await self._shards.number_of(name) != number:
                raise NotAllowedError(
                    f"{full_name(name)[:80]!r} cannot be committed together with sink {full_name(sink)[:80]!r}",
                    hint=f"begin the sink's transactional ids with {SINK_PREFIX}/ and its name and /",
                )

    def _alive(self) -> list[TransactionShard]:
        return [shard for shard in self._loaded.values() if shard.alive]

    def find(self, name: str) -> Transaction | None:
        """What is known of a transactional id at once: nothing if its shard is not loaded."""
        for shard in self._loaded.values():
            if shard.alive and name in shard.by_id:
                return shard.by_id[name]
        return None

    # --- the gate ---------------------------------------------------------------------------------------

    def admit(self, stamp: Stamp, topic: TopicName) -> int | WeirError | None:
        """At once if the coordinator is here: who is it may change at any time, but one that is here ends with the
        same lease as the topic does."""
        number = self._shards.of_producer_now(stamp.producer_id)
        for shard in self._loaded.values():
            if shard.shard.number == number and shard.alive and shard.shard.ready:
                return _admitted(shard, stamp, topic)
        return None

    async def verify(self, stamp: Stamp, topic: TopicName) -> int:
        """NotOwnerError, PeerError if the coordinator cannot be found for a while."""
        request = VerifyWrite(topic, stamp.producer_id, stamp.epoch)

        async def here(shard: TransactionShard) -> int:
            found = _admitted(shard, stamp, topic)
            if isinstance(found, WeirError):
                raise found
            return found

        async def there(broker_id: str, peers: PeerCalls) -> int:
            return (await peers.ask(broker_id, request)).round

        number = await self._shards.of_producer(stamp.producer_id)
        found = await self._ask(number, here, there)
        if found >> ROUND_BITS < self._heard.get(number, 0):
            raise NotOwnerError("a coordinator answered that was replaced", hint="try again")
        self._heard[number] = found >> ROUND_BITS
        return found

    async def confirm_end(self, producer_id: int, topic: TopicName, *, commit: bool) -> None:
        """From its coordinator's durable word: one that was replaced cannot give it."""

        async def here(shard: TransactionShard) -> None:
            if self._shards.several_brokers:
                await shard.shard.confirm()
            found = shard.by_producer.get(producer_id)
            wanted = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
            if found is None or found.state is not wanted or topic not in found.parts:
                raise TransactionStateError(f"the transaction of producer {producer_id} does not end so")

        async def there(broker_id: str, peers: PeerCalls) -> None:
            await peers.ask(broker_id, ConfirmEnd(topic, producer_id, commit))

        await self._ask(await self._shards.of_producer(producer_id), here, there)

    async def fate(self, producer_id: int, topic: TopicName, seen_ms: int) -> Fate:
        """What became of what the producer has open in the topic, to which it wrote last at `seen_ms`."""

        async def here(shard: TransactionShard) -> Fate:
            for transaction in shard.by_id.values():
                if producer_id in (transaction.producer_id, transaction.last_id):
                    return transaction.fate(topic, seen_ms)
            return Fate.UNKNOWN

        async def there(broker_id: str, peers: PeerCalls) -> Fate:
            return (await peers.ask(broker_id, AskFate(topic, producer_id, seen_ms))).fate

        return await self._ask(await self._shards.of_producer(producer_id), here, there)

    async def _ask(
        self,
        number: int,
        here: Callable[[TransactionShard], Awaitable[R]],
        there: Callable[[str, PeerCalls], Awaitable[R]],
    ) -> R:
        """Ask the shard, wherever it is; once more, a few times, if it moves meanwhile."""
        for attempt in range(_ATTEMPTS):
            try:
                owner = await self._shards.owner_at(number)
                if owner.here or self._peers is None:
                    return await here(await self.at(number))
                return await there(owner.broker_id, self._peers)
            except _MOVED as moved:
                if attempt == _ATTEMPTS - 1:
                    raise
                log.info("the coordinator of transactions is looked for again: %s", moved)
            await self._clock.sleep(self._settings.retry_pause_s)
        raise NotOwnerError("the coordinator of transactions is not found", hint="try again")

    def answer(self, handlers: PeerHandlers) -> None:
        """Answer topics of other brokers, for the shards that are here."""
        handlers.on(VerifyWrite, self._verify_for)
        handlers.on(AskFate, self._fate_for)
        handlers.on(ConfirmEnd, self._confirm_for)

    async def _here(self, producer_id: int) -> None:
        """NotOwnerError if another broker has the shard: whoever asked looks there."""
        await self.at(await self._shards.of_producer(producer_id))

    async def _verify_for(self, request: VerifyWrite) -> Verified:
        await self._here(request.producer_id)
        return Verified(await self.verify(Stamp(request.producer_id, request.epoch), request.part))

    async def _fate_for(self, request: AskFate) -> FateAnswer:
        await self._here(request.producer_id)
        return FateAnswer(await self.fate(request.producer_id, request.part, request.seen_ms))

    async def _confirm_for(self, request: ConfirmEnd) -> Done:
        await self._here(request.producer_id)
        await self.confirm_end(request.producer_id, request.part, commit=request.commit)
        return Done()

    # --- loading and losing -----------------------------------------------------------------------------

    def _load(self, shard: CoordinatorShard) -> None:
        """What is pending must be so before anybody asks for it."""
        for other in [other for other in self._loaded if not other.alive]:
            self._lost(other)
        self._loaded[shard] = TransactionShard(
            shard, self._takes_part, self._positions, self._clock, self._settings
        )
        shard.on_death(lambda: self._lost(shard))

    def _lost(self, shard: CoordinatorShard) -> None:
        lost = self._loaded.pop(shard, None)
        if lost is not None:
            self._tasks.spawn(lost.close(), "close")

    async def _sweep(self) -> None:
        """Load what is this broker's, so that what was decided is ended even if nobody asks; then time-outs."""
        while True:
            try:
                await self._shards.used()
                for shard in self._alive():
                    shard.sweep()
            except WeirError as failed:
                log.warning("transactions could not be looked after this time: %s", failed)
            await self._clock.sleep(self._settings.sweep_s)


def _admitted(shard: TransactionShard, stamp: Stamp, topic: TopicName) -> int | WeirError:
    """Which of its transactions the producer may write in, to the topic; or why not."""
    found = shard.by_producer.get(stamp.producer_id)
    if found is None:
        return NotInTransactionError(f"producer {stamp.producer_id} has no transactional id")
    if stamp.epoch != found.epoch:
        return StaleEpochError(f"producer {stamp.producer_id} is at epoch {found.epoch}")
    if found.state is not TransactionState.ONGOING or topic not in found.confirmed:
        return NotInTransactionError(f"{topic} is not part of an open transaction of {found.id!r}")
    return shard.round_of(found)
