"""Services and settings that all streams of a broker share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from weir.ledger.client import LedgerClient
from weir.meta.interfaces import MetaStore
from weir.model.cluster import EveryFeature, FeaturesInUse
from weir.runtime.budgets import ByteBudget
from weir.runtime.interfaces import Runtime
from weir.runtime.object_store import ObjectStores, RuntimeStores
from weir.stream.handover import ComingStreams
from weir.stream.read_ahead import AheadBudget
from weir.stream.segments import SegmentReads
from weir.stream.settings import StreamSettings
from weir.stream.tail import TailCache

_MEMORY_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StreamContext:
    """Runtime, metadata, ledgers, one tail cache, one read-ahead budget and one value of settings."""

    runtime: Runtime
    meta: MetaStore
    ledgers: LedgerClient
    tails: TailCache
    settings: StreamSettings
    #: Format features that every broker that may open a stream next can read.
    features: FeaturesInUse = field(default_factory=EveryFeature)
    #: Budget for messages that are in memory and not in the log.
    memory: ByteBudget = field(default_factory=lambda: ByteBudget(_MEMORY_BYTES))
    #: Object stores of the lake; None: the runtime's.
    stores: ObjectStores | None = None
    #: Callback invoked after each step of tiering, with its name, for tests that crash there.
    reached: Callable[[str], None] = lambda step: None
    ahead: AheadBudget = field(init=False)
    #: Copies of ledgers in the lake.
    segments: SegmentReads = field(init=False)
    coming: ComingStreams = field(init=False)

    def __post_init__(self) -> None:
        ahead = AheadBudget(self.runtime.clock, self.settings.ahead_limit_bytes)
        object.__setattr__(self, "ahead", ahead)
        segments = SegmentReads(self.stores or RuntimeStores(self.runtime), self.settings.lake_cache_bytes)
        object.__setattr__(self, "segments", segments)
        coming = ComingStreams(self.runtime.clock, self.ledgers, self.settings.quorum)
        object.__setattr__(self, "coming", coming)
