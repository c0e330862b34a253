"""Weir: one message and streaming platform over one replicated log."""

__version__ = "0.1.0.dev0"
