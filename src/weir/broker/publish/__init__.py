"""The publish path of a batch: limits, deduplication, delayed delivery, append to the log, and receipt."""
