"""Settings of streams and of holding areas (delayed messages)."""

from dataclasses import dataclass, field

from weir.model.ledger import Quorum


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Stream settings, one value per broker."""

    #: Replication of the ledgers of a stream.
    quorum: Quorum = field(default_factory=Quorum)
    #: An append to a ledger of this size, entry count or age rolls it: the broker closes it and opens the next.
    roll_bytes: int = 256 * 1024 * 1024
    roll_entries: int = 100_000
    roll_s: float = 4 * 3600.0
    #: Limit of unacknowledged bytes: above it `wait_capacity()` waits, above twice the limit `append` refuses.
    window_bytes: int = 32 * 1024 * 1024
    #: Pause before a retry of opening a ledger or recovering a failed one.
    retry_pause_s: float = 0.2
    #: Ledger readers kept open per stream.
    readers: int = 4
    #: Read-ahead limit for one reader of old batches, and for all of them together.
    ahead_bytes: int = 4 * 1024 * 1024
    ahead_limit_bytes: int = 32 * 1024 * 1024
    #: Cache for reads of ledger copies in the lake, for all readers together.
    lake_cache_bytes: int = 64 * 1024 * 1024
    #: Changes of the state (cursors, deduplication) within this time are written together.
    state_pause_s: float = 0.2
    #: The state moves to a new ledger once its ledger exceeds this size and four times the live state.
    state_roll_bytes: int = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HoldingSettings:
    """Settings of the holding areas of all streams, one value per broker."""

    #: Messages with due times in the same window share ledgers. Beyond `fine_windows` windows ahead, the length of
    #: windows doubles, and so on, so that any distant future needs few ledgers.
    window_s: float = 4 * 3600.0
    fine_windows: int = 32
    #: A window's index is loaded into memory this long before the window begins.
    load_ahead_s: float = 600.0
    #: Maximum due times in memory per stream (about 60 bytes each). Above it, the later half is dropped and loaded
    #: again when it is near.
    index_entries: int = 128 * 1024
    #: Maximum time between clock checks, since the wall clock may jump; also the interval of progress writes.
    tick_s: float = 1.0
    #: Maximum entries, and approximate maximum bytes, that are read and released together.
    group_entries: int = 256
    group_bytes: int = 1024 * 1024
    #: Maximum concurrent releases.
    in_flight: int = 2048
    #: Above either limit `wait_capacity()` waits; above twice the limit `hold` refuses.
    window_entries: int = 16 * 1024
    window_bytes: int = 16 * 1024 * 1024
    #: Ledger readers kept open per stream.
    readers: int = 8
    #: Pause before a retry of opening a ledger.
    retry_pause_s: float = 0.2
    #: Minimum time between fencing a former holder's ledger and deleting it.
    fence_s: float = 600.0
    #: Pause before a retry of a release that the stream refused.
    release_pause_s: float = 0.02
    #: After this many messages in the stream without a release, progress is written anyway, so that the next
    #: holder does not scan all of them.
    cover_messages: int = 10_000
