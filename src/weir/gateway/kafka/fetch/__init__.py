"""Fetch: long-polling reads, fetch sessions, and lookup of offsets by time."""
