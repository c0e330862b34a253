"""The transactions of one shard: in memory, written down, ended, and gone with the shard."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from weir.broker.api import CommittedOffset, TransactionState
from weir.broker.coordinator_shards import CoordinatorShard
from weir.broker.transactions.model import (
    Transaction,
    TransactionEvent,
    TransactionSettings,
    decode_transaction,
    encode_transaction,
)
from weir.model.check import check
from weir.model.errors import (
    NamespaceNotFoundError,
    NotOwnerError,
    StreamError,
    StreamTerminatedError,
    TenantNotFoundError,
    TopicNotFoundError,
    WeirError,
)
from weir.model.topics import TopicName
from weir.model.transactions import TransactionEnd
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
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
    """What `weir.broker.groups.offsets.GroupOffsets` offers, as far as transactions need it."""

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
