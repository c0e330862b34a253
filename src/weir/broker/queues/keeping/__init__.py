"""The rules of a queue at work: expiry, length, dead letters, and queues that nobody uses."""
