"""What topics and the broker ask of the registry, the guards, the schemas and ownership, as small interfaces.

Each has a form that allows everything and remembers nothing but names, for a broker on its own and for tests.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from weir.broker.api import Identity, Owner, SchemaData
from weir.model.batch import Batch, HeldId, Origin, Stamp
from weir.model.errors import NotOwnerError, TopicNotFoundError, WeirError
from weir.model.policies import DEFAULT_POLICIES, Policies
from weir.model.queues import QueueRules
from weir.model.registry import SYSTEM_NAMESPACE, Action, BrokerInfo, TopicRecord, system_record
from weir.model.tiering import TieringRules
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
    """What `weir.broker.registry.registry.Registry` offers, as far as topics need it."""

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
    """What `weir.broker.transactions.shard_set.TransactionShards` offers, as far as topics need it."""

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


class NothingElsewhere:
    """Fills `PartsElsewhere` for a broker on its own."""

    async def check_unused(self, part: TopicName) -> None:
        raise NotOwnerError(f"there is no other broker to ask about {part}")

    async def erase(self, part: TopicName) -> None:
        raise NotOwnerError(f"there is no other broker to delete {part}")


class OpenGuard:
    """Everyone may do everything."""

    revision = 0

    async def change(self, seen: int) -> int:
        never: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        return await never

    def check(
        self, role: str, topic: TopicName, action: Action | None, *, subscription: str | None = None
    ) -> None:
        pass

    def check_configure(self, role: str, topic: TopicName) -> None:
        pass

    def check_policies(self, role: str, namespace: NamespaceName) -> None:
        pass

    def check_listing(self, role: str, namespace: NamespaceName) -> None:
        pass

    def check_admin(self, role: str, namespace: NamespaceName) -> None:
        pass

    def check_stored_target(self, source: TopicName, target: TopicName) -> None:
        pass


class NoSchemas:
    async def for_producer(self, topic: TopicName, schema: SchemaData | None, *, role: str = "") -> bytes:
        return b""

    async def for_consumer(self, topic: TopicName, schema: SchemaData | None, *, role: str = "") -> None:
        pass

    async def purge(self, topic: TopicName) -> None:
        pass


class NoTiering:
    """Every ledger stays."""

    def of(self, topic: TopicName) -> TieringRules | None:
        return None

    async def look(self, topic: TopicName) -> TieringRules | None:
        return None


class NoQueueRules:
    """Every topic is a plain queue."""

    _plain = QueueRules()

    def of(self, topic: TopicName) -> QueueRules:
        return self._plain


class _ForEver:
    held = True
    epoch = 0


class SoleOwner:
    """This broker serves every topic."""

    def __init__(self, listeners: Mapping[str, str] | None = None) -> None:
        self._owner = Owner(True, listeners or {}, "sole", 0)

    async def own(self, topic: TopicName) -> Claim:
        return _ForEver()

    async def owner(self, topic: TopicName) -> Owner:
        return self._owner

    def owner_now(self, topic: TopicName) -> Owner:
        return self._owner

    def owners_now(self, topic: TopicName, partitions: Sequence[int]) -> list[Owner]:
        return [self._owner] * len(partitions)

    def brokers(self) -> list[BrokerInfo]:
        return [BrokerInfo(self._owner.broker_id, "", self._owner.listeners)]

    def former_brokers(self) -> list[BrokerInfo]:
        return []


class PlainRegistry:
    """Topics come to be when they are asked for; one set of policies for all."""

    def __init__(self, policies: Policies | None = None) -> None:
        self._policies = (policies or Policies()).over(DEFAULT_POLICIES)
        self._topics: dict[TopicName, TopicRecord] = {}
        self.policies_revision = (0, 0)

    def set(self, policies: Policies) -> None:
        """Other policies from now on."""
        self.policies_revision = (self.policies_revision[0] + 1, 0)
        self._policies = policies.over(self._policies)

    def policies(self, where: TopicName) -> Policies:
        return self._policies

    async def ensure_topic(self, name: TopicName, *, create: bool = True) -> TopicRecord:
        if name.namespace == SYSTEM_NAMESPACE:
            return system_record(name)
        found = self._topics.get(name.base)
        if found is None:
            if not create:
                raise TopicNotFoundError(f"there is no topic {name}")
            found = self._topics[name.base] = TopicRecord(name.base)
        return found

    async def confirm_topic(self, name: TopicName) -> TopicRecord | None:
        return system_record(name) if name.namespace == SYSTEM_NAMESPACE else self._topics.get(name.base)

    async def doom_topic(self, name: TopicName) -> TopicRecord:
        found = await self.ensure_topic(name, create=False)
        doomed = self._topics[name.base] = replace(found, deleting=True)
        return doomed

    async def forget_topic(self, doomed: TopicRecord) -> None:
        if self._topics.get(doomed.name) == doomed:
            del self._topics[doomed.name]

    async def doomed_topics(self) -> list[TopicName]:
        return [record.name for record in self._topics.values() if record.deleting]

    def hold_topic(self, name: TopicName) -> None:
        """All are."""

    def let_go_of_topic(self, name: TopicName) -> None:
        """It stays."""

    async def look_policies(self, topic: TopicName) -> Policies:
        return self._policies

    async def topic_names(
        self, namespace: NamespaceName, *, pattern: str | None = None
    ) -> AsyncIterator[list[TopicName]]:
        yield [topic for topic in self._topics if topic.namespace == namespace]
