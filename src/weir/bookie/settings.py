"""Settings of a bookie, one small value per part."""

from dataclasses import dataclass, field

from weir.model.check import check
from weir.model.ids import BookieId

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """How adds become durable."""

    #: None: sync before the acknowledgement. Else: acknowledge after the write, sync at this interval.
    sync_interval_s: float | None = None
    file_bytes: int = 64 * MIB
    #: Used files kept for reuse: writing to pages that exist costs a fraction of writing to new ones.
    max_free_files: int = 4
    #: Approximate maximum size of one write (a single larger batch is still one write).
    max_write_bytes: int = 4 * MIB
    #: Above this many queued bytes the bookie refuses adds as busy.
    max_queued_bytes: int = 64 * MIB

    def __post_init__(self) -> None:
        check(self.sync_interval_s is None or self.sync_interval_s > 0, "a sync interval is above zero")
        check(self.file_bytes >= 64 * KIB, "a journal file has room for a few records")
        check(self.max_write_bytes > 0 and self.max_queued_bytes > 0, "a journal's limits are above zero")


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Memory for entries on their way to the entry logs and back."""

    #: Total of both generations: the active one and the one in flight.
    write_bytes: int = 128 * MIB
    read_bytes: int = 64 * MIB
    #: Size of one read from an entry log, for sequential reads.
    read_ahead_bytes: int = 256 * KIB
    index_bytes: int = 16 * MIB
    max_open_logs: int = 256

    def __post_init__(self) -> None:
        check(self.write_bytes > 0 and self.read_ahead_bytes > 0, "a bookie's caches are larger than nothing")
        check(self.max_open_logs > 0, "a bookie may open an entry log")


@dataclass(frozen=True, slots=True)
class FlushSettings:
    """When and how the write cache goes to an entry log."""

    #: Flush at least this often while anything is cached: it bounds the journal that a restart replays.
    interval_s: float = 60.0
    chunk_bytes: int = MIB
    #: Sync as the log grows, so that no single sync keeps the journal's waiting for long.
    sync_every_bytes: int = MIB
    #: Between two pieces a flush pauses for this multiple of the last write's time, up to `max_rest_s`, if time
    #: permits.
    rest_factor: float = 2.0
    max_rest_s: float = 0.05
    retry_s: float = 5.0


@dataclass(frozen=True, slots=True)
class GcSettings:
    """When the bookie rewrites entry logs to reclaim the space of deleted entries."""

    interval_s: float = 60.0
    #: The bookie rewrites a log with a smaller live fraction than this.
    live_below: float = 0.5
    #: The bookie merges logs smaller than this, if there are at least `merge_logs` of them.
    small_bytes: int = 16 * MIB
    merge_logs: int = 8
    #: Approximate maximum size of a rewritten log.
    target_bytes: int = 256 * MIB
    bytes_per_s: int = 32 * MIB


@dataclass(frozen=True, slots=True)
class SpaceSettings:
    """When the disk counts as full."""

    #: Below this much free space the bookie accepts no new entries,
    low_water_bytes: int = 256 * MIB
    #: and it accepts them again above this.
    high_water_bytes: int = 512 * MIB
    interval_s: float = 5.0

    def __post_init__(self) -> None:
        check(self.low_water_bytes <= self.high_water_bytes, "the low-water mark is not above the high-water mark")


@dataclass(frozen=True, slots=True)
class BookieSettings:
    """One bookie: its id, its folder, and the settings of its parts."""

    bookie_id: BookieId
    directory: str
    journal: JournalSettings = field(default_factory=JournalSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    flush: FlushSettings = field(default_factory=FlushSettings)
    gc: GcSettings = field(default_factory=GcSettings)
    space: SpaceSettings = field(default_factory=SpaceSettings)
    #: Maximum of concurrent long polls; above it the bookie answers busy.
    max_polls: int = 100_000
