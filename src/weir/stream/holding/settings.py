"""What can be set about holding areas."""

from dataclasses import dataclass


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
