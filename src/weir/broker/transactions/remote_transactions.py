"""Transactions that other brokers coordinate: what this one's clients ask of them, and what it answers theirs.

Clients find a transaction's coordinator by themselves. Here goes what they say to another broker: a partition
joins by being produced to, a group by its positions; and a sink's driver asks any broker.

Who takes part in transactions, wherever they are: partitions, and groups whose positions these move.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from weir.broker.api.transactions import ProducerIdentity
from weir.broker.coordination.partition_ops import Parts
from weir.broker.coordination.shards import CoordinatorShards
from weir.broker.peers.peer_calls import PeerCalls, PeerHandlers
from weir.model.topics import TopicName
from weir.model.transactions import TransactionEnd
from weir.wire.peer.calls import Done
from weir.wire.peer.coordinator_calls import (
    AskSinkEpoch,
    CommitEpoch,
    EndInGroup,
    EpochCommitted,
    ForgetSink,
    JoinGroup,
    JoinParts,
    SinkEpoch,
    SinkWriter,
    Verified,
)

#: Transactions of others of which it is remembered what is part of them.
_MOST_JOINED = 10_000


@dataclass(slots=True)
class _Joined:
    """Partitions that are part of a producer's transaction, for as long as it has this epoch."""

    producer_id: int
    epoch: int
    parts: dict[TopicName, None] = field(default_factory=dict)


class RemoteCoordinators:
    """The coordinators of other brokers."""

    def __init__(self, peers: PeerCalls) -> None:
        self._peers = peers
        self._joined: dict[tuple[str, str], _Joined] = {}

    def at(self, broker_id: str) -> "CoordinatorBroker":
        return CoordinatorBroker(self, self._peers, broker_id)

    def joined(self, role: str, name: str, producer_id: int, epoch: int) -> Mapping[TopicName, None] | None:
        """What was made part of the producer's transaction from here; None if nothing. Whether it is still open,
        topics ask before they store anything (`verification`)."""
        known = self._joined.get((role, name))
        if known is None or (known.producer_id, known.epoch) != (producer_id, epoch):
            return None
        return known.parts

    def note(self, role: str, name: str, identity: ProducerIdentity, parts: Sequence[TopicName]) -> None:
        known = self._joined.get((role, name))
        if known is None or (known.producer_id, known.epoch) != (identity.producer_id, identity.epoch):
            self._joined.pop((role, name), None)
            if len(self._joined) >= _MOST_JOINED:
                del self._joined[next(iter(self._joined))]
            known = self._joined[role, name] = _Joined(identity.producer_id, identity.epoch)
        known.parts.update(dict.fromkeys(parts))


class CoordinatorBroker:
    """One of them."""

    def __init__(self, elsewhere: RemoteCoordinators, peers: PeerCalls, broker_id: str) -> None:
        self._elsewhere = elsewhere
        self._peers = peers
        self._broker_id = broker_id

    async def add_partitions(
        self, role: str, name: str, identity: ProducerIdentity, parts: Sequence[TopicName]
    ) -> None:
        who = identity.producer_id, identity.epoch
        await self._peers.ask(self._broker_id, JoinParts(role, name, *who, tuple(parts)))
        self._elsewhere.note(role, name, identity, parts)

    async def join_group(
        self, role: str, name: str, identity: ProducerIdentity, group: str, *, joins: bool
    ) -> int:
        who = identity.producer_id, identity.epoch
        return (await self._peers.ask(self._broker_id, JoinGroup(role, name, *who, group, joins))).round

    async def commit_together(
        self,
        role: str,
        sink: str,
        epoch: int,
        transactions: Sequence[tuple[str, ProducerIdentity]],
        *,
        query: str = "",
        instead_of: str = "",
    ) -> bool:
        writers = tuple(SinkWriter(name, who.producer_id, who.epoch) for name, who in transactions)
        request = CommitEpoch(role, sink, epoch, writers, query, instead_of)
        return (await self._peers.ask(self._broker_id, request)).now

    async def sink_epoch(self, role: str, sink: str) -> int:
        return (await self._peers.ask(self._broker_id, AskSinkEpoch(role, sink))).epoch

    async def forget_sink(self, role: str, sink: str) -> None:
        await self._peers.ask(self._broker_id, ForgetSink(role, sink))


class _Transactions(Protocol):
    """`weir.broker.transactions.transaction_access.OwnedTransactions`, as far as others ask for it."""

    async def add_partitions(self, name: str, identity: ProducerIdentity, parts: Sequence[TopicName]) -> None: ...

    async def join_group(self, name: str, identity: ProducerIdentity, group: str, *, joins: bool) -> int: ...

    async def commit_together(
        self,
        sink: str,
        epoch: int,
        transactions: Sequence[tuple[str, ProducerIdentity]],
        *,
        query: str = "",
        instead_of: str = "",
    ) -> bool: ...

    async def sink_epoch(self, sink: str) -> int: ...

    async def forget_sink(self, sink: str) -> None: ...


class _RoleTransactions(Protocol):
    def here(self, role: str) -> _Transactions: ...


class TransactionsService:
    """Answers other brokers for the transactions that this one coordinates; NotOwnerError for others."""

    def __init__(self, access: _RoleTransactions) -> None:
        self._access = access

    def answer(self, handlers: PeerHandlers) -> None:
        handlers.on(JoinParts, self._join_parts)
        handlers.on(JoinGroup, self._join_group)
        handlers.on(CommitEpoch, self._commit_epoch)
        handlers.on(AskSinkEpoch, self._sink_epoch)
        handlers.on(ForgetSink, self._forget_sink)

    async def _join_parts(self, request: JoinParts) -> Done:
        who = ProducerIdentity(request.producer_id, request.epoch)
        await self._access.here(request.role).add_partitions(request.name, who, request.parts)
        return Done()

    async def _join_group(self, request: JoinGroup) -> Verified:
        who, transactions = ProducerIdentity(request.producer_id, request.epoch), self._access.here(request.role)
        return Verified(await transactions.join_group(request.name, who, request.group, joins=request.joins))

    async def _commit_epoch(self, request: CommitEpoch) -> EpochCommitted:
        wanted = [(one.name, ProducerIdentity(one.producer_id, one.epoch)) for one in request.writers]
        transactions = self._access.here(request.role)
        return EpochCommitted(
            await transactions.commit_together(
                request.sink, request.epoch, wanted, query=request.query, instead_of=request.instead_of
            )
        )

    async def _sink_epoch(self, request: AskSinkEpoch) -> SinkEpoch:
        return SinkEpoch(await self._access.here(request.role).sink_epoch(request.sink))

    async def _forget_sink(self, request: ForgetSink) -> Done:
        await self._access.here(request.role).forget_sink(request.sink)
        return Done()


class _Groups(Protocol):
    """What `weir.broker.groups.group_offsets.GroupOffsets` offers."""

    async def end(self, group: str, end: TransactionEnd) -> None: ...


class TransactionParticipants:
    """Fills `shard.TakesPart`. Without `peers` all of them are here."""

    def __init__(
        self, parts: Parts, groups: _Groups, shards: CoordinatorShards, peers: PeerCalls | None = None
    ) -> None:
        self._parts = parts
        self._groups = groups
        self._shards = shards
        self._peers = peers

    async def end_transaction(self, part: TopicName, end: TransactionEnd) -> None:
        await self._parts.end_transaction(part, end)

    async def end_in_group(self, group: str, end: TransactionEnd) -> None:
        if self._peers is not None:
            owner = await self._shards.owner(group)
            if not owner.here:
                await self._peers.ask(owner.broker_id, EndInGroup(group, end))
                return
        await self._groups.end(group, end)

    def answer(self, handlers: PeerHandlers) -> None:
        """Answer other brokers for the groups that are here."""
        handlers.on(EndInGroup, self._end_for)

    async def _end_for(self, request: EndInGroup) -> Done:
        await self._groups.end(request.group, request.end)
        return Done()
