"""What a bookie counts, for people and graphs."""

from dataclasses import dataclass

from weir.bookie.space import BookieState


@dataclass(frozen=True, slots=True)
class BookieStats:
    """Numbers for people and graphs."""

    state: BookieState
    ledgers: int
    fenced_ledgers: int
    queued_bytes: int
    journal_writes: int
    journal_bytes: int
    write_cache_bytes: int
    write_cache_entries: int
    read_cache_bytes: int
    read_cache_hits: int
    read_cache_misses: int
    flushes: int
    logs: int
    log_bytes: int
    live_bytes: int
    removed_logs: int
    rewritten_bytes: int
    damaged_logs: int
    #: Entries known to be damaged now; entries that were and are whole again; indexes that were made anew.
    damaged_entries: int
    healed_entries: int
    mended_indexes: int
    free_bytes: int
    polls: int
