"""What all topics of a broker share."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from weir.broker.api import Guard
from weir.broker.dispatch.key_ranges import KeysOf
from weir.broker.groups.assigned import GroupMembers
from weir.broker.ports import Holding, NoSchemas, OpenGuard, Schemas, TransactionGate
from weir.broker.publish.held_names import NameOf
from weir.broker.settings import BrokerSettings
from weir.model.batch import Batch, BatchFormat
from weir.runtime import Runtime
from weir.runtime.byte_budget import ByteBudget
from weir.stream.compaction import Keyed, KeyedOf
from weir.stream.context import StreamContext
from weir.stream.log import Stream
from weir.stream.state import StateLog

_COMPACTIONS = 2

#: Opens the holding area of a stream.
OpenHolding = Callable[[StreamContext, Stream, StateLog], Awaitable[Holding]]


@dataclass(frozen=True, slots=True)
class BrokerContext:
    runtime: Runtime
    streams: StreamContext
    settings: BrokerSettings
    #: Bytes that were published and are not stored yet, over all topics: a flood slows its own topic down.
    publish_budget: ByteBudget
    #: How to find the keys in a batch of each format.
    keys: Mapping[BatchFormat, KeysOf] = field(default_factory=dict)
    #: How to find, in a batch of each format, what compaction needs.
    keyed: Mapping[BatchFormat, KeyedOf] = field(default_factory=dict)
    #: How to find, in a held batch of each format, the name under which it can be cancelled.
    names: Mapping[BatchFormat, NameOf] = field(default_factory=dict)
    guard: Guard = field(default_factory=OpenGuard)
    schemas: Schemas = field(default_factory=NoSchemas)
    open_holding: OpenHolding | None = None
    #: Compactions that run at the same time: each reads a topic, and keeps its keys in memory.
    compactions: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_COMPACTIONS))
    #: Who has which partition, of the consumer groups that this broker coordinates.
    members: GroupMembers = field(default_factory=GroupMembers)

    transactions: TransactionGate = field(default_factory=TransactionGate)

    def keys_of(self, batch: Batch) -> "bytes | Sequence[bytes | None] | None":
        """The keys of a batch; a format that nobody knows has none."""
        known = self.keys.get(batch.format)
        return None if known is None else known(batch)

    def keyed_of(self, batch: Batch) -> Sequence[Keyed]:
        """What compaction sees of a batch; of a format that nobody knows, nothing."""
        known = self.keyed.get(batch.format)
        return [(None, True)] * batch.count if known is None else known(batch)

    def name_of(self, batch: Batch) -> str | None:
        """The name of a held batch; one of a format that nobody knows has none."""
        known = self.names.get(batch.format)
        return None if known is None else known(batch)
