"""Produce: validates and publishes record batches."""
