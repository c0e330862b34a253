"""Queues in simulation: consumers that acknowledge, requeue and reject, dead letters, and trouble."""
