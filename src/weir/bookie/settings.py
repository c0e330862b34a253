"""What an operator may decide about a bookie, one small value per part."""

from dataclasses import dataclass, field

from weir.model.check import check
from weir.model.ids import BookieId

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """How adds become durable."""

    #: None: synced before it is acknowledged. Else: acknowledged once written, synced this often.
    sync_interval_s: float | None = None
    file_bytes: int = 64 * MIB
    #: Used files kept for reuse: writing to pages that exist costs a fraction of writing to new ones.
    max_free_files: int = 4
    #: One write takes at most about this much from the queue (a single larger batch is still one write).
    max_write_bytes: int = 4 * MIB
    #: Adds beyond this many bytes in the queue are refused as busy.
    max_queued_bytes: int = 64 * MIB

    def __post_init__(self) -> None:
        check(self.sync_interval_s is None or self.sync_interval_s > 0, "a sync interval is above zero")
        check(self.file_bytes >= 64 * KIB, "a journal file has room for a few records")
        check(self.max_write_bytes > 0 and self.max_queued_bytes > 0, "a journal's limits are above zero")


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Memory for entries on their way to the entry logs and back."""

    #: Both generations together: one that takes entries, one that is being flushed.
    write_bytes: int = 128 * MIB
    read_bytes: int = 64 * MIB
    #: What one read from an entry log brings in, for the entries that will be asked for next.
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
    #: While there is time, the disk is left alone for so many times as long as the last piece took it, up to this.
    rest_factor: float = 2.0
    max_rest_s: float = 0.05
    retry_s: float = 5.0


@dataclass(frozen=True, slots=True)
class GcSettings:
    """When entry logs are rewritten to get the space of deleted entries back."""

    interval_s: float = 60.0
    #: A log is rewritten when less than this part of it is live.
    live_below: float = 0.5
    #: Logs smaller than this are merged, once there are `merge_logs` of them.
    small_bytes: int = 16 * MIB
    merge_logs: int = 8
    #: A rewritten log takes no more than about this.
    target_bytes: int = 256 * MIB
    bytes_per_s: int = 32 * MIB


@dataclass(frozen=True, slots=True)
class SpaceSettings:
    """When the disk counts as full."""

    #: Below this much free space the bookie takes no new entries,
    low_water_bytes: int = 256 * MIB
    #: and it takes them again above this.
    high_water_bytes: int = 512 * MIB
    interval_s: float = 5.0

    def __post_init__(self) -> None:
        check(self.low_water_bytes <= self.high_water_bytes, "the low-water mark is not above the high-water mark")


@dataclass(frozen=True, slots=True)
class BookieSettings:
    """One bookie: who it is, where its files lie, and its parts."""

    bookie_id: BookieId
    directory: str
    journal: JournalSettings = field(default_factory=JournalSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    flush: FlushSettings = field(default_factory=FlushSettings)
    gc: GcSettings = field(default_factory=GcSettings)
    space: SpaceSettings = field(default_factory=SpaceSettings)
    #: Long polls that may wait at a time; beyond them the bookie is busy.
    max_polls: int = 100_000
