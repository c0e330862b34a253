"""Ownership by bundle: boundaries, claims, splits, and handing over."""
