"""What all topics of a broker share."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from weir.broker.api import BrokerFlows, Guard
from weir.broker.dead_letters.routes import LetterGate
from weir.broker.dispatch.consumer_limit import ConsumerLimit
from weir.broker.groups.assigned import GroupMembers
from weir.broker.half.checkers import LiveCheckers
from weir.broker.ports import (
    Holding,
    NoQueueRules,
    NoSchemas,
    NoTiering,
    OpenGuard,
    QueueRulesSource,
    Schemas,
    TieringSource,
    TransactionGate,
)
from weir.broker.settings import BrokerSettings
from weir.broker.trace.log import TraceLog
from weir.broker.trace.spans import SpanMemory
from weir.broker.tracing import Tracing
from weir.model.batch import Batch, BatchFormat
from weir.model.topics import TopicName
from weir.runtime import Runtime
from weir.runtime.byte_budget import ByteBudget
from weir.stream.context import StreamContext
from weir.stream.log import Stream
from weir.stream.state import StateLog
from weir.wire.formats import FORMATS, Format, Keyed, Keys

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
    members: GroupMembers = field(default_factory=GroupMembers)

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
    half_checkers: LiveCheckers = field(default_factory=LiveCheckers)
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
