"""What is done for topics without anybody asking: expiry, retention, compaction, cut-short deletions."""
