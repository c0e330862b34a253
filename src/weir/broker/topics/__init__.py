"""Topics: log, state, producers, subscriptions, readers by offset, tiered storage and statistics of each."""
