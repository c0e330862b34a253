"""The way of a batch from a producer into the log: limits, deduplication, holding, append, receipt."""
