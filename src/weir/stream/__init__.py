"""A partition's log: chain of ledgers, offsets, cursors, holding area, retention, compaction."""
