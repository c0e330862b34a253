"""Calls about offsets."""
