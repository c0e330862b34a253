"""Calls about lite."""
