"""What can be set about streams."""

from dataclasses import dataclass, field

from weir.model.ledger import Quorum


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """One value for all streams of a broker."""

    #: How the ledgers of a stream are replicated.
    quorum: Quorum = field(default_factory=Quorum)
    #: A ledger that holds so much, or is so old when something is appended, is closed and another begun.
    roll_bytes: int = 256 * 1024 * 1024
    roll_entries: int = 100_000
    roll_s: float = 4 * 3600.0
    #: What may wait to be acknowledged: above it `wait_capacity()` waits, above twice as much `append` refuses.
    window_bytes: int = 32 * 1024 * 1024
    #: Wait so long before trying again to open a ledger or to recover one that failed.
    retry_pause_s: float = 0.2
    #: Ledger readers kept open per stream.
    readers: int = 4
    #: What is read ahead for a reader of old batches, and for all of them together.
    ahead_bytes: int = 4 * 1024 * 1024
    ahead_limit_bytes: int = 32 * 1024 * 1024
    #: What was read from copies of ledgers in the lake and is kept in memory, for all readers together.
    lake_cache_bytes: int = 64 * 1024 * 1024
    #: Changes of small state (cursors, deduplication) within this time are written together.
    state_pause_s: float = 0.2
    #: The state's ledger is written anew once it holds so much, and four times the live state.
    state_roll_bytes: int = 4 * 1024 * 1024
