"""Topics, subscriptions, dispatch, deduplication, ownership, quotas, authorisation."""
