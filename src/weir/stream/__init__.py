"""The log of a partition: chain of ledgers, offsets, cursors, holding area, retention, compaction."""
