"""The publish path: limits, deduplication, delayed batches, append order and receipts."""
