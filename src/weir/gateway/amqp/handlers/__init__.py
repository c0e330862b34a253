"""Handlers of channel methods, one module per method class."""
