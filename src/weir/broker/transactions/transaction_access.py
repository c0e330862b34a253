"""Transactions and sinks as one role may use them: the coordinator behind the question whose an id is.

They are the role's that uses them. Which one a name means is asked here on every path: a role has its own of every
name, whoever else has one, so nobody can take, see or lock another's. A superuser who uses a role's acts in that
role's place: it stays the role's.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from urllib.parse import quote

from weir.broker.api.broker import Owner
from weir.broker.api.transactions import ProducerIdentity, TransactionInfo
from weir.broker.security.authorization import TO_HAVE_TRANSACTIONS, Authoriser
from weir.broker.transactions.remote_transactions import CoordinatorBroker, RemoteCoordinators
from weir.broker.transactions.transaction_coordinator import Transactions
from weir.model.errors import NotAuthorisedError, UnknownProducerError, UnknownTransactionError
from weir.model.topics import SINK_PREFIX, TopicName, check_unmarked, full_name, kept_name, plain_name
from weir.model.transactions import CommittedOffset

_NOTHING: Mapping[TopicName, None] = {}
_OwnerOf = Callable[[str], Awaitable[str | None]]


class TransactionAccess:
    """The coordinator's transactions and sinks, for every role."""

    def __init__(
        self, transactions: Transactions, authoriser: Authoriser, elsewhere: RemoteCoordinators | None = None
    ) -> None:
        """`elsewhere`: the coordinators of other brokers, which are asked where this one is not the one to ask."""
        self._transactions = transactions
        self._authoriser = authoriser
        self._elsewhere = elsewhere

    def of(self, role: str) -> "OwnedTransactions":
        return OwnedTransactions(self._transactions, self._authoriser, role, self._elsewhere)

    def here(self, role: str) -> "OwnedTransactions":
        """The same without asking others."""
        return OwnedTransactions(self._transactions, self._authoriser, role)


class OwnedTransactions:
    """What the coordinator offers, by the names and within the rights of a role."""

    def __init__(
        self,
        transactions: Transactions,
        authoriser: Authoriser,
        role: str,
        elsewhere: RemoteCoordinators | None = None,
    ) -> None:
        self._transactions = transactions
        self._elsewhere = elsewhere
        self._authoriser = authoriser
        self._owners = authoriser.names
        self._role = role
        self._everything = authoriser.is_superuser(role)

    # --- producers --------------------------------------------------------------------------------------

    async def init(
        self, name: str | None, *, timeout_ms: int = 60_000, expected: ProducerIdentity | None = None
    ) -> ProducerIdentity:
        """Who the producer is from now on."""
        if name is None:
            return await self._transactions.init(None, timeout_ms=timeout_ms)
        while True:
            kept, actor = await self._to_make(name, self._transactions.role_of)
            try:
                return await self._transactions.init(
                    kept, timeout_ms=timeout_ms, role=actor, expected=expected, bounded=not self._everything
                )
            except NotAuthorisedError:  # another role was faster with the plain name: this one has its own
                if kept != name:
                    raise

    async def add_partitions(self, name: str, identity: ProducerIdentity, parts: Sequence[TopicName]) -> None:
        other = await self._broker_of(name)
        if other is not None:
            await other.add_partitions(self._role, name, identity, parts)
            return
        kept, actor = await self._known(name)
        await self._transactions.add_partitions(kept, identity, parts, role=actor)

    def joined(self, name: str, producer_id: int, epoch: int) -> Mapping[TopicName, None]:
        """As far as it can be told at once."""
        if self._elsewhere is not None:
            joined = self._elsewhere.joined(self._role, name, producer_id, epoch)
            if joined is not None:
                return joined
        if self._everything:
            owner = self._transactions.role_now(name)
            return _NOTHING if owner is None else self._transactions.joined(name, producer_id, epoch, owner)
        try:
            self._owners.check(self._role, TO_HAVE_TRANSACTIONS)
        except NotAuthorisedError:
            return _NOTHING
        apart = self._apart(name)
        kept = name if self._transactions.role_now(apart) is None else apart
        return self._transactions.joined(kept, producer_id, epoch, self._role)

    async def verify(self, name: str, identity: ProducerIdentity, parts: Sequence[TopicName]) -> None:
        kept, actor = await self._known(name)
        await self._transactions.verify(kept, identity, parts, role=actor)

    async def add_offsets(self, name: str, identity: ProducerIdentity, group: str) -> None:
        """`group`: as its coordinator calls it."""
        kept, actor = await self._known(name)
        await self._transactions.add_offsets(kept, identity, group, role=actor)

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
        """`group`: as its coordinator calls it, which is the one to be asked for this."""

        async def join() -> int:
            return await self.join_group(name, identity, group, joins=joins)

        await self._transactions.positions.prepare(group, identity.producer_id, positions, join=join, check=check)

    async def join_group(self, name: str, identity: ProducerIdentity, group: str, *, joins: bool) -> int:
        """As the coordinator has it."""
        other = await self._broker_of(name)
        if other is not None:
            return await other.join_group(self._role, name, identity, group, joins=joins)
        kept, actor = await self._known(name)
        return await self._transactions.join_group(kept, identity, group, role=actor, joins=joins)

    async def end(self, name: str, identity: ProducerIdentity, *, commit: bool) -> None:
        kept, actor = await self._known(name)
        await self._transactions.end(kept, identity, commit=commit, role=actor)

    async def end_epoch(self, name: str, identity: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        kept, actor = await self._known(name)
        return await self._transactions.end_epoch(kept, identity, commit=commit, role=actor)

    # --- sinks ------------------------------------------------------------------------------------------

    async def commit_together(
        self,
        sink: str,
        epoch: int,
        transactions: Sequence[tuple[str, ProducerIdentity]],
        *,
        query: str = "",
        instead_of: str = "",
    ) -> bool:
        """As the coordinator has it."""
        await self._transactions.check_together(sink, [name for name, _ in transactions])
        other = await self._broker_of(sink)
        if other is not None:
            return await other.commit_together(
                self._role, sink, epoch, transactions, query=query, instead_of=instead_of
            )
        kept, actor = await self._to_make(sink, self._transactions.sink_role)
        named: list[tuple[str, ProducerIdentity]] = []
        for name, identity in transactions:
            one, owner = await self._known(name)
            if owner != actor:
                raise UnknownProducerError(f"{name[:80]!r} is not of the role whose the sink is")
            named.append((one, identity))
        bounded = not self._everything
        return await self._transactions.commit_together(
            kept, epoch, named, role=actor, bounded=bounded, query=query, instead_of=instead_of
        )

    async def sink_epoch(self, sink: str) -> int:
        """-1 if the role has none of this name."""
        other = await self._broker_of(sink)
        if other is not None:
            return await other.sink_epoch(self._role, sink)
        kept, actor = await self._to_make(sink, self._transactions.sink_role)
        return await self._transactions.sink_epoch(kept, role=actor)

    async def forget_sink(self, sink: str) -> None:
        """Fine if the role has none of this name."""
        other = await self._broker_of(sink)
        if other is not None:
            await other.forget_sink(self._role, sink)
            return
        kept, actor = await self._to_make(sink, self._transactions.sink_role)
        await self._transactions.forget_sink(kept, role=actor)

    # --- asking -----------------------------------------------------------------------------------------

    async def describe(self, name: str) -> TransactionInfo:
        """UnknownTransactionError if there is none that the role may use."""
        kept, owner = await self._found(name, self._transactions.role_of)
        if owner is None:
            raise UnknownTransactionError(f"there is no transactional id {name[:80]!r}")
        return replace(await self._transactions.describe(kept), id=name)

    async def all(self) -> list[TransactionInfo]:
        """Every transactional id that the role may use."""
        listed = await self._transactions.all()
        if self._everything:
            named = [replace(info, id=full_name(info.id)) for info in listed]
            return sorted(named, key=lambda info: info.id)
        try:
            self._owners.check(self._role, TO_HAVE_TRANSACTIONS)
        except NotAuthorisedError:
            return []
        return [replace(info, id=plain_name(info.id)) for info in listed if info.role == self._role]

    async def owner_here(self, name: str) -> bool:
        """Whether this broker is the one to ask for the id; NotAuthorisedError for who has no ids."""
        if not self._everything:
            self._owners.check(self._role, TO_HAVE_TRANSACTIONS)
        return (await self._transactions.owner(name)).here

    async def owner(self, name: str) -> Owner:
        """The broker to ask for the id, or for the sink; NotAuthorisedError for who has none."""
        if not self._everything:
            self._owners.check(self._role, TO_HAVE_TRANSACTIONS)
        return await self._transactions.owner(name)

    async def _broker_of(self, name: str) -> CoordinatorBroker | None:
        """The broker to ask, if it is another one."""
        if self._elsewhere is None:
            return None
        owner = await self._transactions.owner(name)
        return None if owner.here else self._elsewhere.at(owner.broker_id)

    # --- which one is meant, and who may ----------------------------------------------------------------------

    async def _found(self, name: str, owner_of: _OwnerOf) -> tuple[str, str | None]:
        """What it is called in the coordinator, and whose it is. NotAuthorisedError for a role that has no rights
        anywhere, whatever there is. A name that another role has is this role's all the same, kept apart."""
        check_unmarked(name)
        if self._everything:
            owner = await owner_of(name)
            if owner is not None or "/" not in name or name.startswith(f"{SINK_PREFIX}/"):
                return name, owner  # what is before the slash is no role
            apart = kept_name(*name.split("/", 1))
            owner = await owner_of(apart)
            return (name, None) if owner is None else (apart, owner)
        self._owners.check(self._role, TO_HAVE_TRANSACTIONS)
        apart = self._apart(name)
        owner = await owner_of(apart)
        if owner is not None:
            return apart, owner
        owner = await owner_of(name)
        return (name, owner) if owner in (None, self._role) else (apart, None)

    def _apart(self, name: str) -> str:
        return kept_name(quote(self._role, safe=""), name)

    async def _to_make(self, name: str, owner_of: _OwnerOf) -> tuple[str, str]:
        """What it is, or will be, called in the coordinator, and the role to act as: its own, if it has one."""
        kept, owner = await self._found(name, owner_of)
        return kept, self._role if owner is None else owner

    async def _known(self, name: str) -> tuple[str, str]:
        """Its name in the coordinator, and the role to act as."""
        kept, owner = await self._found(name, self._transactions.role_of)
        if owner is None:
            raise UnknownProducerError(f"nothing is known of the transactional id {name[:80]!r}")
        return kept, owner
