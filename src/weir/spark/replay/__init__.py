"""Replay by query: Spark picks messages out of lake and topic, and exactly those are delivered again, once."""
