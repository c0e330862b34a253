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
    """Who may write under which transactional id, what belongs together, how it ends."""

    async def init(
        self,
        name: str | None,
        *,
        timeout_ms: int = 60_000,
        expected: ProducerIdentity | None = None,
    ) -> ProducerIdentity:
        """Who the producer is from now on; others of the same transactional id are fenced, and what they left open
        is aborted. `expected`: who it was, if it only wants to go on under a new epoch."""

    async def add_partitions(self, name: str, identity: ProducerIdentity, parts: Sequence[TopicName]) -> None:
        """Let the producer's transaction, begun now if none is open, write to these partitions too."""

    def joined(self, name: str, producer_id: int, epoch: int) -> Mapping[TopicName, None]:
        """The partitions that are known, durably, to be part of the producer's open transaction; as far as that
        can be told at once. The same mapping for as long as the transaction is open."""

    async def verify(self, name: str, identity: ProducerIdentity, parts: Sequence[TopicName]) -> None:
        """NotInTransactionError unless the producer's open transaction writes to all of these partitions."""

    async def add_offsets(self, name: str, identity: ProducerIdentity, group: str) -> None:
        """Let the transaction, begun now if none is open, move positions of the group: as `Groups.kept` has it."""

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
        """Move the group to these positions if the transaction commits. `joins`: the group becomes part of it, and
        it is begun if none is open. `check` raises if the group does not allow it."""

    async def end(self, name: str, identity: ProducerIdentity, *, commit: bool) -> None:
        """Decide the open transaction. Durable when this returns, and mostly carried out; fine to ask again."""

    async def end_epoch(self, name: str, identity: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        """The same with a new epoch, or where these are used up a new producer id: answers with who the producer
        is from now on. One that aborts may have begun nothing."""


class TransactionAdmin(Protocol):
    """What administrators ask."""

    async def describe(self, name: str) -> TransactionInfo:
        """UnknownTransactionError if nothing is known of the id."""

    async def all(self) -> list[TransactionInfo]:
        """Every transactional id that this broker coordinates."""

    async def owner_here(self, name: str) -> bool:
        """Whether this broker is the one to ask for the id."""

    async def owner(self, name: str) -> Owner:
        """The broker to ask for the id, or for a sink of this name."""


class Sinks(Protocol):
    """Writers of epochs: each commits its transactions of one epoch together, once."""

    async def commit_together(
        self,
        sink: str,
        epoch: int,
        transactions: Sequence[tuple[str, ProducerIdentity]],
        *,
        query: str = "",
        instead_of: str = "",
    ) -> bool:
        """Commit all of them or none, together with the word that the sink has written this epoch. False, and
        nothing is done, if it had written this epoch or a later one before. Ids that begin with
        `weir-sink/<the sink's name>/` can be committed so wherever they are; NotAllowedError if one write cannot
        decide all of them. `query`: the id of the query whose epoch it is, if it is known.
        SinkOfOtherQueryError if another one has written the last epoch, unless `instead_of` names that one: then
        `query` continues the sink, and its epochs count from here on."""

    async def sink_epoch(self, sink: str) -> int:
        """The last epoch that the sink has written; -1 if none."""

    async def forget_sink(self, sink: str) -> None:
        """The sink writes no more; fine if nothing is known of it."""


class Transactions(TransactionIds, TransactionAdmin, Sinks, Protocol):
    """Transactional ids and sinks of one role (`docs/adr/0023-whose-names.md`): others' are not there.
    NotAuthorisedError for who has none."""


class RoleTransactions(Protocol):
    """The coordinator of transactions: who asks comes first."""

    def of(self, role: str) -> Transactions: ...
