"""A replicated ledger as its writer and readers see it."""
