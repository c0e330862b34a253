"""Calls about transactions."""
