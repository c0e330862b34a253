"""Transactions over many topics and groups, and sinks that commit each epoch once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from weir.broker.api.broker import Owner
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset, TransactionState


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """`started_ms`: -1 if none is open."""

    id: str
    producer_id: int
    epoch: int
    state: TransactionState
    timeout_ms: int
    started_ms: int
    parts: tuple[TopicName, ...]
    groups: tuple[str, ...]
    role: str = ""


class TransactionIds(Protocol):
    """Transactional ids: producer identities, and the partitions, offsets and outcome of each transaction."""

    async def init(
        self,
        name: str | None,
        *,
        timeout_ms: int = 60_000,
        expected: ProducerIdentity | None = None,
    ) -> ProducerIdentity:
        """Return the new identity of the producer. Fences other producers of the same transactional id, and aborts
        their open transaction. `expected`: its previous identity, if it only needs a new epoch."""

    async def add_partitions(self, name: str, identity: ProducerIdentity, parts: Sequence[TopicName]) -> None:
        """Add these partitions to the producer's transaction; begin one if none is open."""

    def joined(self, name: str, producer_id: int, epoch: int) -> Mapping[TopicName, None]:
        """The partitions that are durably part of the producer's open transaction, as far as known without
        waiting. Returns the same mapping while the transaction is open."""

    async def verify(self, name: str, identity: ProducerIdentity, parts: Sequence[TopicName]) -> None:
        """NotInTransactionError unless the producer's open transaction writes to all of these partitions."""

    async def add_offsets(self, name: str, identity: ProducerIdentity, group: str) -> None:
        """Add the group, named as in `Groups.kept`, to the transaction; begin one if none is open."""

    async def commit_offsets(
        self,
        name: str,
        identity: ProducerIdentity,
        group: str,
        positions: Mapping[TopicName, CommittedOffset],
        *,
        joins: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Commit these offsets of the group if the transaction commits. `joins`: also add the group to the
        transaction, and begin one if none is open. `check` raises if the group refuses the offsets."""

    async def end(self, name: str, identity: ProducerIdentity, *, commit: bool) -> None:
        """Commit or abort the open transaction. The decision is durable when this returns, and usually complete.
        Idempotent."""

    async def end_epoch(self, name: str, identity: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        """Like `end`, and return a new identity: the next epoch, or a new producer id if no epoch is left. An
        abort is also valid without an open transaction."""


class TransactionAdmin(Protocol):
    """Requests of administrators."""

    async def describe(self, name: str) -> TransactionInfo:
        """UnknownTransactionError if the id is unknown."""

    async def all(self) -> list[TransactionInfo]:
        """Every transactional id that this broker coordinates."""

    async def owner_here(self, name: str) -> bool:
        """Whether this broker coordinates the id."""

    async def owner(self, name: str) -> Owner:
        """The broker that coordinates the id, or a sink of this name."""


class Sinks(Protocol):
    """Sinks: a sink commits all its transactions of one epoch together, exactly once."""

    async def commit_together(
        self,
        sink: str,
        epoch: int,
        transactions: Sequence[tuple[str, ProducerIdentity]],
        *,
        query: str = "",
        instead_of: str = "",
    ) -> bool:
        """Commit all transactions or none, and record atomically that the sink has written this epoch. False,
        without effect, if the sink has already written this epoch or a later one. All ids with the prefix
        `weir-sink/<the sink's name>/` can commit together; NotAllowedError if one write cannot decide all ids.
        `query`: the id of the query that writes the epoch, if known. SinkOfOtherQueryError if another query wrote
        the last epoch, unless `instead_of` names that query: then `query` continues the sink, and its epochs count
        from here on."""

    async def sink_epoch(self, sink: str) -> int:
        """The last epoch that the sink has written; -1 if none."""

    async def forget_sink(self, sink: str) -> None:
        """Delete the state of a sink that writes no more; a no-op for an unknown sink."""


class Transactions(TransactionIds, TransactionAdmin, Sinks, Protocol):
    """Transactional ids and sinks of one role (`docs/adr/0023-whose-names.md`); those of other roles are
    invisible. NotAuthorisedError if the role may not have any."""


class RoleTransactions(Protocol):
    """The coordinator of transactions; callers first select their role."""

    def of(self, role: str) -> Transactions: ...
