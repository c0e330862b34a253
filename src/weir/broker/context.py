"""What all topics of a broker share.

Which members of consumer groups have which partitions: told by groups, asked by stats and by upkeep.

Members of a group fetch by themselves, so a topic never sees them as consumers; it asks here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from weir.broker.api.broker import BrokerFlows
from weir.broker.api.consumers import ConsumerLimit
from weir.broker.api.security import Guard
from weir.broker.api.stats import ConsumerStats
from weir.broker.ports import Holding, LetterGate, QueueRulesSource, Schemas, TieringSource, TransactionGate
from weir.broker.prepared.decision_checks import DecisionCheckers
from weir.broker.settings import BrokerSettings
from weir.broker.standalone import NoQueueRules, NoSchemas, NoTiering, OpenGuard
from weir.broker.trace.spans import SpanMemory, Tracing
from weir.broker.trace.trace_log import TraceLog
from weir.model.batch import Batch, BatchFormat
from weir.model.topics import TopicName, plain_name
from weir.runtime.budgets import ByteBudget
from weir.runtime.interfaces import Runtime
from weir.stream.context import StreamContext
from weir.stream.log import Stream
from weir.stream.state_log import StateLog
from weir.wire.formats.format import Format, Keyed, Keys
from weir.wire.formats.table import FORMATS

#: A member as stats show it, and the partitions that it was given.
Share = tuple[ConsumerStats, Sequence[TopicName]]


class GroupAssignments:
    """One for all topics of a broker."""

    def __init__(self) -> None:
        #: Members by their ids, by the group, by the partition that they have.
        self._by_part: dict[TopicName, dict[str, dict[str, ConsumerStats]]] = {}
        self._parts: dict[str, dict[str, Sequence[TopicName]]] = {}

    def of(self, part: TopicName, group: str) -> tuple[ConsumerStats, ...]:
        """The members of the group that have this partition now; `group`: its plain name."""
        return self.on(part).get(group, ())

    def on(self, part: TopicName) -> Mapping[str, tuple[ConsumerStats, ...]]:
        """Every group that has given this partition to somebody, by its plain name, and to whom: groups of several
        tenants that have one name share its subscription."""
        found: dict[str, tuple[ConsumerStats, ...]] = {}
        for group, members in self._by_part.get(part, {}).items():
            name = plain_name(group)
            found[name] = (*found.get(name, ()), *members.values())
        return found

    def set(self, group: str, shares: Iterable[Share]) -> None:
        """From now on the group's work is divided like this, and in no other way."""
        self.change(group, list(self._parts.get(group, ())), shares)

    def change(self, group: str, gone: Iterable[str], came: Iterable[Share]) -> None:
        """Members of the group are gone (by their ids), and these have come; the others have what they had."""
        for member_id in gone:
            self._remove(group, member_id)
        for member, parts in came:
            if not parts:
                continue
            self._parts.setdefault(group, {})[member.name] = parts
            for part in parts:
                self._by_part.setdefault(part, {}).setdefault(group, {})[member.name] = member

    def _remove(self, group: str, member_id: str) -> None:
        members = self._parts.get(group, {})
        for part in dict.fromkeys(members.pop(member_id, ())):
            groups = self._by_part[part]
            del groups[group][member_id]
            if not groups[group]:
                del groups[group]
            if not groups:
                del self._by_part[part]
        if not members:
            self._parts.pop(group, None)


_COMPACTIONS = 2
_COPIES = 2

#: Opens the holding area of a stream.
OpenHolding = Callable[[StreamContext, Stream, StateLog], Awaitable[Holding]]


async def _nothing_else(topic: TopicName) -> None:
    """No more to do."""


@dataclass(frozen=True, slots=True)
class BrokerContext:
    runtime: Runtime
    streams: StreamContext
    settings: BrokerSettings
    #: Bytes that were published and are not stored yet, over all topics: a flood slows its own topic down.
    publish_budget: ByteBudget
    #: What batches of each stored format say of themselves.
    formats: Mapping[BatchFormat, Format] = field(default_factory=lambda: FORMATS)
    guard: Guard = field(default_factory=OpenGuard)
    schemas: Schemas = field(default_factory=NoSchemas)
    open_holding: OpenHolding | None = None
    #: Compactions that run at the same time: each reads a topic, and keeps its keys in memory.
    compactions: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_COMPACTIONS))
    #: Who has which partition, of the consumer groups that this broker coordinates.
    members: GroupAssignments = field(default_factory=GroupAssignments)

    #: Called when a topic that was declared as a queue is being deleted, whoever does so.
    queue_deleted: Callable[[TopicName], Awaitable[None]] = _nothing_else
    #: What is declared of topics that are queues.
    queue_rules: QueueRulesSource = field(default_factory=NoQueueRules)

    #: Which topics' ledgers go to the lake, and when.
    tiering: TieringSource = field(default_factory=NoTiering)
    #: Ledgers that are copied to the lake at the same time.
    copies: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_COPIES))

    #: Where dead letters go.
    letters: LetterGate = field(default_factory=LetterGate)

    #: Who hears of messages that carry a trace; None: nobody.
    tracing: Tracing | None = None
    #: Which messages these were.
    span_memory: SpanMemory = field(default_factory=SpanMemory)
    #: Where it is written down what becomes of messages; None: nowhere.
    trace: TraceLog | None = None

    #: Who can be asked what became of half messages.
    half_checkers: DecisionCheckers = field(default_factory=DecisionCheckers)
    transactions: TransactionGate = field(default_factory=TransactionGate)
    #: How many consumers a subscription may have.
    consumer_limit: ConsumerLimit = field(default_factory=ConsumerLimit)
    #: What passes through all topics together.
    flows: BrokerFlows = field(default_factory=BrokerFlows)

    @property
    def queue_budget(self) -> ByteBudget:
        """For messages of queues in memory."""
        return self.streams.memory

    def keys_of(self, batch: Batch) -> Keys:
        """The keys of a batch; one that nobody can open has none."""
        return self.formats[batch.format].keys(batch)

    def keyed_of(self, batch: Batch) -> Sequence[Keyed]:
        """What compaction sees of a batch."""
        return self.formats[batch.format].keyed(batch)

    def name_of(self, batch: Batch) -> str | None:
        """The name of a held batch."""
        return self.formats[batch.format].delay_id(batch)
