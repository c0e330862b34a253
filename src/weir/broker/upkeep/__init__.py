"""Background upkeep of topics: expiry, retention, compaction, unloading, interrupted deletions, revoked grants."""
