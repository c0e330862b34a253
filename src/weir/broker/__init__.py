"""Topics, subscriptions, transactions, ownership, quotas and authorization over the replicated log."""
