"""Queues on the log, and in memory."""
