"""Tiered storage: which topics have it, when their ledgers go to the lake, and what is told of that.

What a topic is: its log with its state, its readers by offset, its stats.
"""
