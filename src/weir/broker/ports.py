"""Where dead letters can go: exchanges and queues of a namespace, and topics of any, whichever broker has them.

What topics and the broker ask of the registry, the guards, the schemas and ownership, as small interfaces.

Each has a form that allows everything and remembers nothing but names, for a broker on its own and for tests.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Protocol

from weir.broker.api.broker import Owner
from weir.broker.api.queues import NamespaceExchanges, Queue
from weir.broker.api.schemas import SchemaData
from weir.broker.api.security import Identity
from weir.model.batch import Batch, HeldId, Origin, Stamp
from weir.model.errors import WeirError
from weir.model.policies import Policies, TieringRules
from weir.model.queues import QueueRules
from weir.model.registry import BrokerInfo, TopicRecord
from weir.model.topics import NamespaceName, TopicName
from weir.model.transactions import Fate


class Authenticator(Protocol):
    def authenticate(self, method: str, credentials: bytes, *, certificate: bytes | None = None) -> Identity:
        """Who is behind the credentials; NotAuthenticatedError."""


class Schemas(Protocol):
    async def for_producer(self, topic: TopicName, schema: SchemaData | None, *, role: str = "") -> bytes:
        """The version under which the topic knows the schema, which is added if policies allow."""

    async def for_consumer(self, topic: TopicName, schema: SchemaData | None, *, role: str = "") -> None:
        """Raises if a consumer with this schema could not read what is there."""

    async def purge(self, topic: TopicName) -> None:
        """Forget every version for good: the topic itself goes."""


class Holding(Protocol):
    """What `weir.stream.holding.area.HoldingArea` offers, as far as topics need it."""

    def hold(self, batch: Batch, due_ms: int) -> "asyncio.Future[HeldId]": ...

    @property
    def has_capacity(self) -> bool: ...

    async def wait_capacity(self) -> None: ...

    def positions(self) -> dict[int, int]:
        """How many entries of each of its ledgers are acknowledged."""

    def origins_since(self, positions: Mapping[int, int]) -> AsyncGenerator[Origin, None]:
        """Who sent what was held since it had these positions."""

    def held_since(self, positions: Mapping[int, int]) -> AsyncGenerator[tuple[HeldId, Batch], None]:
        """What was held since it had these positions, be it released or cancelled since."""

    async def cancel(self, held: HeldId) -> None:
        """Forget a held batch, durably; NotHeldError if it is too late."""

    async def before_trim(self, offset: int) -> None: ...

    async def close(self) -> None: ...


class Registry(Protocol):
    """What `weir.broker.metadata.registry.Registry` offers, as far as topics need it."""

    @property
    def policies_revision(self) -> tuple[int, int]:
        """Another one whenever `policies` may answer otherwise for a topic that is held."""

    def policies(self, where: TopicName) -> Policies:
        """What holds for the topic, all levels together: every field has a value."""

    async def ensure_topic(self, name: TopicName, *, create: bool = True) -> TopicRecord:
        """The topic as a whole, made now if `create` and policies allow; else TopicNotFoundError."""

    async def confirm_topic(self, name: TopicName) -> TopicRecord | None:
        """The topic as the metadata store knows it at this moment."""

    async def doom_topic(self, name: TopicName) -> TopicRecord:
        """Mark it, durably, as being deleted; TopicNotFoundError."""

    async def forget_topic(self, doomed: TopicRecord) -> None:
        """The last step of its deletion. Fine if somebody was faster."""

    async def doomed_topics(self) -> list[TopicName]:
        """Those that are marked as being deleted."""

    def hold_topic(self, name: TopicName) -> None:
        """Keep what holds for the topic in memory: it is loaded. Until it is let go of as often."""

    def let_go_of_topic(self, name: TopicName) -> None: ...

    async def look_policies(self, topic: TopicName) -> Policies:
        """What holds for a topic, whether or not it is held."""

    def topic_names(
        self, namespace: NamespaceName, *, pattern: str | None = None
    ) -> AsyncIterator[list[TopicName]]:
        """Every topic of the namespace, each partition on its own, in some at a time."""


class TieringSource(Protocol):
    """What holds for topics whose ledgers go to the lake."""

    def of(self, topic: TopicName) -> TieringRules | None:
        """From memory, for a topic that is loaded; None if its ledgers stay."""

    async def look(self, topic: TopicName) -> TieringRules | None:
        """The same, of any topic."""


class QueueRulesSource(Protocol):
    """What holds for topics as queues."""

    def of(self, topic: TopicName) -> QueueRules:
        """From memory, for a topic that is loaded. The same object while nothing changes."""


class Claim(Protocol):
    """A topic that this broker has."""

    @property
    def held(self) -> bool:
        """Whether it still has it."""

    @property
    def epoch(self) -> int:
        """The leader epoch that comes with it."""


class Ownership(Protocol):
    async def own(self, topic: TopicName) -> Claim:
        """Make this broker the one that serves the topic; NotOwnerError if another does."""

    async def owner(self, topic: TopicName) -> Owner:
        """Where a client of the topic is to go, also while its owner is gone and its lease has not ended."""

    def owner_now(self, topic: TopicName) -> Owner:
        """Who has it, from memory."""

    def owners_now(self, topic: TopicName, partitions: Sequence[int]) -> list[Owner]:
        """`owner_now` of these partitions of the topic."""

    def brokers(self) -> list[BrokerInfo]:
        """Every broker that is registered, this one among them, in the order of their node ids."""

    def former_brokers(self) -> list[BrokerInfo]:
        """Those that were until some seconds ago, and went without a word."""


class GateKeeper(Protocol):
    """What `weir.broker.transactions.transaction_shards.TransactionShards` offers, as far as topics need it."""

    def admit(self, stamp: Stamp, topic: TopicName) -> int | WeirError | None:
        """Whether a producer may begin to write to the topic in a transaction, as far as it can be told at once:
        which of its transactions that is (`TransactionEnd.round`), or why not; None if it is to be asked for."""

    async def verify(self, stamp: Stamp, topic: TopicName) -> int:
        """The same, asked for wherever the coordinator is; raises why not."""

    async def confirm_end(self, producer_id: int, topic: TopicName, *, commit: bool) -> None:
        """Raises unless what the producer has open in the topic is decided to end so."""

    async def fate(self, producer_id: int, topic: TopicName, seen_ms: int) -> Fate:
        """What became of what the producer has open in the topic, to which it wrote last at `seen_ms`."""


class TransactionGate:
    """Asked before the first batch of a producer's transaction is stored in a topic: one that came too late, when
    the transaction is over, would open another that nobody ends. Open while nobody keeps it. Topics have it before
    there is a coordinator, which stores what it knows in a topic itself."""

    def __init__(self, keeper: GateKeeper | None = None) -> None:
        self._keeper = keeper

    def kept_by(self, keeper: GateKeeper) -> None:
        """The coordinator answers from now on."""
        self._keeper = keeper

    def admit(self, stamp: Stamp, topic: TopicName) -> int | WeirError | None:
        return 0 if self._keeper is None else self._keeper.admit(stamp, topic)

    async def verify(self, stamp: Stamp, topic: TopicName) -> int:
        return 0 if self._keeper is None else await self._keeper.verify(stamp, topic)

    async def confirm_end(self, producer_id: int, topic: TopicName, *, commit: bool) -> None:
        if self._keeper is not None:
            await self._keeper.confirm_end(producer_id, topic, commit=commit)

    async def fate(self, producer_id: int, topic: TopicName, seen_ms: int) -> Fate:
        return Fate.OPEN if self._keeper is None else await self._keeper.fate(producer_id, topic, seen_ms)


class PartsElsewhere(Protocol):
    """Parts of topics that other brokers have, as far as a deletion has to do with them."""

    async def check_unused(self, part: TopicName) -> None:
        """NotAllowedError if somebody is connected to it there."""

    async def erase(self, part: TopicName) -> None:
        """Have it closed and its messages deleted, by whoever has it; NotOwnerError if that is nobody else."""


class LetterRoutes(Protocol):
    """As a sender in one namespace sees them."""

    async def exchanges(self) -> NamespaceExchanges: ...

    async def target(self, name: str) -> Queue:
        """Whoever has it. QueueNotFoundError."""

    async def topic(self, name: TopicName, *, create: bool) -> Queue:
        """A topic, or a partition of one, as a queue: what is sent there waits for the queue's consumers, whoever
        else reads it. QueueNotFoundError if it is not there and shall not be made."""


class RouteSource(Protocol):
    """Knows the queues of every namespace."""

    async def open(self, namespace: NamespaceName) -> LetterRoutes:
        """NamespaceNotFoundError."""


class LetterGate:
    """Topics have it before the queues are there to which letters go; until then they wait."""

    def __init__(self) -> None:
        self._source: RouteSource | None = None

    def lead_to(self, source: RouteSource) -> None:
        self._source = source

    def routes(self, namespace: NamespaceName) -> LetterRoutes:
        """As senders of the namespace see them."""
        return _Routes(self, namespace)

    async def open(self, namespace: NamespaceName) -> LetterRoutes:
        if self._source is None:
            raise WeirError("the broker has no queues yet", hint="try again")
        return await self._source.open(namespace)


class _Routes:
    """Fills `LetterRoutes`: looked for each time, as namespaces come and go."""

    def __init__(self, gate: LetterGate, namespace: NamespaceName) -> None:
        self._gate = gate
        self._namespace = namespace

    async def exchanges(self) -> NamespaceExchanges:
        return await (await self._gate.open(self._namespace)).exchanges()

    async def target(self, name: str) -> Queue:
        return await (await self._gate.open(self._namespace)).target(name)

    async def topic(self, name: TopicName, *, create: bool) -> Queue:
        return await (await self._gate.open(self._namespace)).topic(name, create=create)
