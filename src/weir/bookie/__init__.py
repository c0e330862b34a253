"""A storage node: journal with group commit, write cache, entry log, index, garbage collection, server."""

from weir.bookie.bookie import Bookie, BookieStats
from weir.bookie.settings import (
    BookieSettings,
    CacheSettings,
    FlushSettings,
    GcSettings,
    JournalSettings,
    SpaceSettings,
)
from weir.bookie.space import BookieState

__all__ = [
    "Bookie",
    "BookieSettings",
    "BookieState",
    "BookieStats",
    "CacheSettings",
    "FlushSettings",
    "GcSettings",
    "JournalSettings",
    "SpaceSettings",
]
