"""The coordinator of transactions: who may write under which id, what belongs together, how it ends.

    identity = await transactions.init("orders-1", timeout_ms=60_000, role=role)
    await transactions.add_partitions("orders-1", identity, parts, role=role)
    ...                                  # batches with that producer id and epoch, marked as transactional
    await transactions.end("orders-1", identity, commit=True, role=role)

Every step is decided at once, in memory, and answered when it is durable. It knows no protocol. A producer may end
each transaction with `end_epoch` instead, and goes on as the one that it is told to be.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from weir.broker.api.broker import Owner
from weir.broker.api.transactions import ProducerIdentity, TransactionInfo
from weir.broker.coordination.shards import CoordinatorShards
from weir.broker.peers.peer_calls import PeerCalls, PeerHandlers
from weir.broker.ports import TransactionGate
from weir.broker.transactions.transaction import MAX_EPOCH, Transaction, TransactionEvent, TransactionSettings
from weir.broker.transactions.transaction_shards import (
    EndStep,
    Positions,
    TakesPart,
    TransactionShard,
    TransactionShards,
    check_identity,
    count_on,
    end_step,
)
from weir.model.errors import (
    InvalidNameError,
    NotAuthorisedError,
    NotInTransactionError,
    SinkOfOtherQueryError,
    StaleEpochError,
    TooManyError,
    TransactionBusyError,
    TransactionStateError,
    TransactionTimeoutError,
    UnknownProducerError,
    UnknownTransactionError,
)
from weir.model.topics import TopicName, full_name
from weir.model.transactions import CommittedOffset, TransactionState
from weir.runtime.interfaces import Clock

log = logging.getLogger(__name__)

_MAX_NAME_BYTES = 1024
_NOTHING: Mapping[TopicName, None] = {}


class TakesIds(Protocol):
    async def take(self) -> int:
        """An id that nobody had before."""


class Transactions:
    """`start`, then `close`, before the broker is closed. `may_use_all` tells of which roles every transactional
    id is; for others it is that of whoever used it first."""

    def __init__(
        self,
        clock: Clock,
        shards: CoordinatorShards,
        *,
        takes_part: TakesPart,
        positions: Positions,
        ids: TakesIds,
        gate: TransactionGate,
        settings: TransactionSettings | None = None,
        may_use_all: Callable[[str], bool] = lambda role: True,
        peers: PeerCalls | None = None,
    ) -> None:
        """`peers`: other brokers, which may have partitions, groups and shards."""
        self.settings = settings or TransactionSettings()
        self._clock = clock
        self._shards = TransactionShards(
            clock, shards, gate, self.settings, takes_part=takes_part, positions=positions, peers=peers
        )
        self.positions = positions
        self._ids = ids
        self._may_use_all = may_use_all

    def start(self) -> None:
        self._shards.start()

    def answer(self, handlers: PeerHandlers) -> None:
        """Answer other brokers, whose topics ask about transactions."""
        self._shards.answer(handlers)

    async def close(self) -> None:
        await self._shards.close()

    # --- producers --------------------------------------------------------------------------------------

    async def init(
        self,
        name: str | None,
        *,
        timeout_ms: int = 60_000,
        role: str = "",
        expected: ProducerIdentity | None = None,
        bounded: bool = False,
    ) -> ProducerIdentity:
        """Who the producer is from now on; others of the same transactional id are fenced, and what they left open
        is aborted. `expected`: who it was, if it only wants to go on under a new epoch. `bounded`: whether the
        role may have so many ids only."""
        if name is None:
            return ProducerIdentity(await self._shards.producer_id(0, await self._ids.take()), 0)
        self._check_name(name)
        if not 0 < timeout_ms <= self.settings.max_timeout_ms:
            raise TransactionTimeoutError(
                f"a transaction may be open for 1 to {self.settings.max_timeout_ms} ms, not for {timeout_ms}"
            )
        spare = -1  # an id to take, where a new one is needed
        while True:
            shard = await self._shards.of(name)
            transaction = shard.by_id.get(name)
            if spare < 0 and (transaction is None or transaction.epoch >= MAX_EPOCH):
                spare = await self._new_id(shard)
                continue
            if transaction is None:
                if bounded:
                    self._check_owned(shard.ids_of(role), role, "transactional ids")
                transaction = self._create(shard, name, spare, role)
            else:
                self._check_role(transaction, role)
                repeated = expected is not None and self._check_expected(transaction, expected)
                if transaction.state is TransactionState.ONGOING:
                    shard.fence(transaction, asked=expected is not None)
                    await self._ended(shard, transaction)
                    continue
                if transaction.decided:
                    await self._ended(shard, transaction)
                    continue
                # What is repeated was counted on by this request, or by one whose answer was lost.
                if not repeated or transaction.epoch > MAX_EPOCH:
                    self._take_over(shard, transaction, spare, expected)
            shard.give(transaction, role)
            transaction.timeout_ms = timeout_ms
            transaction.move(TransactionEvent.INIT, self._clock.wall_ms())
            shard.put(transaction)
            identity = ProducerIdentity(transaction.producer_id, transaction.epoch)
            await shard.flush()
            return identity

    async def _new_id(self, shard: TransactionShard) -> int:
        """A producer id that nobody had before, and that tells the shard."""
        return await self._shards.producer_id(shard.shard.number, await self._ids.take())

    def _check_owned(self, count: int, role: str, what: str) -> None:
        if count >= self.settings.most_per_role:
            raise TooManyError(
                f"{role!r} has {count} {what}", hint="use fewer; unused ones are forgotten in a week"
            )

    def _create(self, shard: TransactionShard, name: str, producer_id: int, role: str) -> Transaction:
        if len(shard.by_id) >= self.settings.most:
            raise TooManyError(f"there are {self.settings.most} transactional ids already")
        transaction = Transaction(name, producer_id, 0, 0, role)
        shard.add(transaction)
        return transaction

    def _take_over(
        self, shard: TransactionShard, transaction: Transaction, spare: int, expected: ProducerIdentity | None
    ) -> None:
        if transaction.epoch >= MAX_EPOCH:
            shard.rename(transaction, spare, -1 if expected is None else expected.epoch)
        else:
            transaction.count_epoch(asked=expected is not None)

    def _check_expected(self, transaction: Transaction, expected: ProducerIdentity) -> bool:
        """Whether its epoch was counted on already for a producer that asks for that."""
        if expected == transaction.identity:
            return False
        if expected == transaction.last:
            return True
        raise StaleEpochError(f"another producer has taken {full_name(transaction.id)!r} over")

    async def _ended(self, shard: TransactionShard, transaction: Transaction) -> None:
        await shard.end(transaction)
        self._check_ended(transaction)

    # --- what belongs to a transaction ------------------------------------------------------------------

    async def add_partitions(
        self, name: str, identity: ProducerIdentity, parts: Sequence[TopicName], *, role: str = ""
    ) -> None:
        """Let the producer's transaction, begun now if none is open, write to these partitions too."""
        shard, transaction = await self._find(name, identity, role)
        if all(part in transaction.confirmed for part in parts) and transaction.state is TransactionState.ONGOING:
            return
        if len(transaction.parts) + len(parts) > self.settings.most_parts:
            raise TooManyError(f"a transaction may write to {self.settings.most_parts} partitions")
        self._begin(transaction)
        transaction.parts.update(dict.fromkeys(parts))
        shard.put(transaction)
        serial = transaction.serial
        await shard.flush()
        if transaction.serial == serial and transaction.state is TransactionState.ONGOING:
            transaction.confirmed.update(dict.fromkeys(parts))

    def joined(self, name: str, producer_id: int, epoch: int, role: str = "") -> Mapping[TopicName, None]:
        """The partitions that are known, durably, to be part of the producer's open transaction; as far as that
        can be told at once. The same mapping for as long as the transaction is open."""
        transaction = self._shards.find(name)
        if transaction is None or transaction.state is not TransactionState.ONGOING:
            return _NOTHING
        if transaction.producer_id != producer_id or transaction.epoch != epoch:
            return _NOTHING
        return transaction.confirmed if self.may_use(transaction.role, role) else _NOTHING

    async def verify(
        self, name: str, identity: ProducerIdentity, parts: Sequence[TopicName], *, role: str = ""
    ) -> None:
        """NotInTransactionError unless the producer's open transaction writes to all of these partitions."""
        _, transaction = await self._find(name, identity, role)
        self._check_ended(transaction)
        if transaction.state is not TransactionState.ONGOING or not all(p in transaction.confirmed for p in parts):
            raise NotInTransactionError(
                f"not all of the partitions are part of the transaction of {full_name(name)!r}"
            )

    async def add_offsets(self, name: str, identity: ProducerIdentity, group: str, *, role: str = "") -> None:
        """Let the transaction, begun now if none is open, move positions of the group."""
        shard, transaction = await self._find(name, identity, role)
        self._begin(transaction)
        transaction.groups.setdefault(group, {})
        shard.put(transaction)
        await shard.flush()

    async def commit_offsets(
        self,
        name: str,
        identity: ProducerIdentity,
        group: str,
        positions: Mapping[TopicName, CommittedOffset],
        *,
        role: str = "",
        joins: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Move the group to these positions if the transaction commits. `joins`: the group becomes part of it, and
        it is begun if none is open. `check` raises if the group does not allow it."""

        async def join() -> int:
            return await self.join_group(name, identity, group, role=role, joins=joins)

        await self.positions.prepare(group, identity.producer_id, positions, join=join, check=check)

    async def join_group(
        self, name: str, identity: ProducerIdentity, group: str, *, role: str = "", joins: bool = False
    ) -> int:
        """NotInTransactionError unless the group is part of the producer's open transaction; `joins`: it is from
        now on. Answers which of its transactions that is (`TransactionEnd.round`)."""
        shard, transaction = await self._find(name, identity, role)
        self._check_ended(transaction)
        is_open = transaction.state is TransactionState.ONGOING
        if not joins and not (is_open and group in transaction.groups):
            raise NotInTransactionError(
                f"group {full_name(group)!r} is not part of an open transaction of {full_name(name)!r}"
            )
        if not is_open or group not in transaction.groups:
            self._begin(transaction)
            transaction.groups.setdefault(group, {})
            shard.put(transaction)
        of_round = shard.round_of(transaction)
        await shard.flush()
        return of_round

    def _check_ended(self, transaction: Transaction) -> None:
        if transaction.decided:
            raise TransactionBusyError(f"the last transaction of {full_name(transaction.id)!r} is being ended")

    def _begin(self, transaction: Transaction) -> None:
        self._check_ended(transaction)
        transaction.move(TransactionEvent.BEGIN, self._clock.wall_ms())

    # --- the end ----------------------------------------------------------------------------------------

    async def end(self, name: str, identity: ProducerIdentity, *, commit: bool, role: str = "") -> None:
        """Decide the open transaction. Durable when this returns, and mostly carried out; fine to ask again."""
        shard, transaction = await self._find(name, identity, role)
        state = transaction.state
        asked = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        done = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        if state is done:
            await shard.flush()
        elif state is asked:
            await self._ended(shard, transaction)
        else:
            event = TransactionEvent.COMMIT if commit else TransactionEvent.ABORT
            transaction.move(event, self._clock.wall_ms())
            shard.put(transaction)
            await shard.end(transaction)

    async def end_epoch(
        self, name: str, identity: ProducerIdentity, *, commit: bool, role: str = ""
    ) -> ProducerIdentity:
        """The same with a new epoch, or where these are used up a new producer id: answers with who the producer
        is from now on. One that aborts may have begun nothing."""
        spare = -1  # an id to take, where a new one is needed
        while True:
            shard, transaction = await self._known(name, role)
            step = end_step(transaction, identity, commit=commit)
            if step is EndStep.REPEAT or spare >= 0 or transaction.epoch < MAX_EPOCH:
                break
            spare = await self._new_id(shard)
        count_on(shard, transaction, step, spare, self._clock.wall_ms(), commit=commit)
        following = transaction.following
        await shard.end(transaction)
        if step is EndStep.REPEAT:
            self._check_ended(transaction)
        return following

    async def commit_together(
        self,
        sink: str,
        epoch: int,
        transactions: Sequence[tuple[str, ProducerIdentity]],
        *,
        role: str = "",
        bounded: bool = False,
        query: str = "",
        instead_of: str = "",
    ) -> bool:
        """Commit all of them or none, together with the word that the sink has written this epoch. False, and
        nothing is done, if it had written this epoch or a later one before. `bounded`: whether the role may have
        so many sinks only. `query`, `instead_of`: as in `weir.broker.api.Sinks`."""
        await self.check_together(sink, [name for name, _ in transactions])
        shard = await self._shard_of_sink(sink)
        last, owner = self._sink(shard, sink, role)
        if bounded and shard.sink(sink) is None:
            self._check_owned(shard.sinks_of(role), role, "sinks")
        known = shard.sink_query(sink)
        other = query not in ("", known)
        taken = other and known != "" and known == instead_of
        if other and last >= 0 and not taken:
            _check_query(sink, known, query, (epoch, last))
        if epoch <= last and not taken:
            if other:
                shard.put_sink_query(sink, query)
            await shard.flush()
            return False
        found: dict[str, Transaction] = {}
        for name, identity in transactions:
            transaction = self._checked(shard, name, identity, role)
            if transaction.state is not TransactionState.EMPTY:  # of one that wrote nothing there is nothing to do
                if transaction.state is not TransactionState.ONGOING:
                    raise TransactionStateError(
                        f"{full_name(name)!r} has no open transaction: it is {transaction.state.value}"
                    )
                found[name] = transaction
        now_ms = self._clock.wall_ms()
        for transaction in found.values():
            transaction.move(TransactionEvent.COMMIT, now_ms)
            shard.put(transaction)
        shard.put_sink(sink, epoch, owner, again=taken)
        if other:
            shard.put_sink_query(sink, query)
        await shard.flush()
        await asyncio.gather(*map(shard.end, found.values()))
        return True

    async def sink_epoch(self, sink: str, *, role: str = "") -> int:
        """The last epoch that the sink has written; -1 if none."""
        shard = await self._shard_of_sink(sink)
        epoch, _ = self._sink(shard, sink, role)
        await shard.flush()
        return epoch

    async def forget_sink(self, sink: str, *, role: str = "") -> None:
        """The sink writes no more; fine if nothing is known of it."""
        shard = await self._shard_of_sink(sink)
        self._sink(shard, sink, role)
        shard.forget_sink(sink)
        await shard.flush()

    async def _shard_of_sink(self, sink: str) -> TransactionShard:
        self._check_name(sink)
        return await self._shards.of(sink)

    def _sink(self, shard: TransactionShard, sink: str, role: str) -> tuple[int, str]:
        """The last epoch and the owner, who is the first to ask."""
        epoch, owner = shard.sink(sink) or (-1, role)
        if not self.may_use(owner, role):
            raise NotAuthorisedError(f"{full_name(sink)[:80]!r} is another role's sink")
        return epoch, owner

    # --- asking -----------------------------------------------------------------------------------------

    async def describe(self, name: str) -> TransactionInfo:
        """UnknownTransactionError if nothing is known of the id."""
        self._check_name(name)
        found = (await self._shards.of(name)).by_id.get(name)
        if found is None:
            raise UnknownTransactionError(f"there is no transactional id {full_name(name)[:80]!r}")
        return found.info()

    async def all(self) -> list[TransactionInfo]:
        """Every transactional id that this broker coordinates."""
        found = [transaction.info() for shard in await self._shards.all() for transaction in shard.by_id.values()]
        return sorted(found, key=lambda info: info.id)

    async def role_of(self, name: str) -> str | None:
        """The role whose the transactional id is; None if nothing is known of it."""
        self._check_name(name)
        found = (await self._shards.of(name)).by_id.get(name)
        return None if found is None else found.role

    def role_now(self, name: str) -> str | None:
        """The same as far as it can be told at once."""
        found = self._shards.find(name)
        return None if found is None else found.role

    async def sink_role(self, sink: str) -> str | None:
        """The role whose the sink is; None if nothing is known of it."""
        found = (await self._shard_of_sink(sink)).sink(sink)
        return None if found is None else found[1]

    def may_use(self, owner: str, role: str) -> bool:
        """Whether a transactional id that `owner` used first is the role's as well."""
        return role == owner or self._may_use_all(role)

    async def owner(self, name: str) -> Owner:
        """The broker to ask for the id, or for the sink."""
        return await self._shards.owner(name)

    async def check_together(self, sink: str, names: Sequence[str]) -> None:
        """NotAllowedError unless one write can decide transactions of all of these ids for the sink."""
        await self._shards.check_together(sink, names)

    # --- finding ----------------------------------------------------------------------------------------

    async def _find(
        self, name: str, identity: ProducerIdentity, role: str
    ) -> tuple[TransactionShard, Transaction]:
        self._check_name(name)
        shard = await self._shards.of(name)
        return shard, self._checked(shard, name, identity, role)

    async def _known(self, name: str, role: str) -> tuple[TransactionShard, Transaction]:
        """Whoever its producer is."""
        self._check_name(name)
        shard = await self._shards.of(name)
        return shard, self._of(shard, name, role)

    def _checked(self, shard: TransactionShard, name: str, identity: ProducerIdentity, role: str) -> Transaction:
        transaction = self._of(shard, name, role)
        check_identity(transaction, identity)
        return transaction

    def _of(self, shard: TransactionShard, name: str, role: str) -> Transaction:
        transaction = shard.by_id.get(name)
        if transaction is None:
            raise UnknownProducerError(f"nothing is known of the transactional id {full_name(name)[:80]!r}")
        self._check_role(transaction, role)
        return transaction

    def _check_role(self, transaction: Transaction, role: str) -> None:
        if not self.may_use(transaction.role, role):
            raise NotAuthorisedError(f"{full_name(transaction.id)!r} is another role's transactional id")

    def _check_name(self, name: str) -> None:
        if not name or len(name.encode(errors="replace")) > _MAX_NAME_BYTES:
            raise InvalidNameError(
                f"a transactional id has 1 to {_MAX_NAME_BYTES} bytes, {full_name(name)[:80]!r} does not"
            )


def _check_query(sink: str, known: str, query: str, epochs: tuple[int, int]) -> None:
    """SinkOfOtherQueryError if another query has written the last epoch. `epochs`: its own, and the last one. The
    other one is unknown in a sink of an older broker: then a first epoch behind others is of another query."""
    epoch, last = epochs
    if not known and not epoch == 0 < last:
        return
    whose = f"query {known}" if known else "an unknown query"
    take = f"; or set sinkTakeOver={known}, if that query will not run again" if known else ""
    raise SinkOfOtherQueryError(
        f"sink {full_name(sink)[:80]!r} has epoch {last} of {whose}, and this is epoch {epoch} of query {query}: "
        "a new checkpoint counts epochs from 0, and its rows would be taken for duplicates",
        hint=f"start the query with the checkpoint that has written it, or give it another sinkId{take}",
    )
