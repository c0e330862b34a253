"""Reads at offsets with a wait, and look-up by time."""
