"""Background work on topics: expiry, retention, compaction, unloading, unfinished deletions."""
