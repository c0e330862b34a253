"""Tiered storage: which topics have it, when their ledgers go to the lake, and what is told of that."""
