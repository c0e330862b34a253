"""What can be set about holding areas.

What can be set about streams.
"""

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


@dataclass(frozen=True, slots=True)
class HoldingSettings:
    """One value for the holding areas of all streams of a broker."""

    #: Messages that are due within the same window share ledgers. Further ahead than `fine_windows` of them,
    #: windows are twice as long, and so on, so that the far future needs few ledgers, however far it reaches.
    window_s: float = 4 * 3600.0
    fine_windows: int = 32
    #: A window's index is read into memory so long before the window begins.
    load_ahead_s: float = 600.0
    #: Moments kept in memory per stream (about 60 bytes each); beyond, the later half is read again when its
    #: time comes.
    index_entries: int = 128 * 1024
    #: Look at the clock at least this often, since it may jump; also how often progress is written down.
    tick_s: float = 1.0
    #: Read and released together, at most so many and about so much.
    group_entries: int = 256
    group_bytes: int = 1024 * 1024
    #: Releases under way, at most.
    in_flight: int = 2048
    #: Above either bound `wait_capacity()` waits; above twice as much `hold` refuses.
    window_entries: int = 16 * 1024
    window_bytes: int = 16 * 1024 * 1024
    #: Ledger readers kept open per stream.
    readers: int = 8
    #: Try again so long after no ledger could be begun.
    retry_pause_s: float = 0.2
    #: A ledger that was taken from a former holder is deleted no sooner than this after it was fenced.
    fence_s: float = 600.0
    #: Try again so long after the stream did not take a release.
    release_pause_s: float = 0.02
    #: When the stream has grown by so many messages without a release, the progress is written down all the
    #: same, so that the next holder need not look through all of them.
    cover_messages: int = 10_000
