"""Ownership of bundles: broker registration, boundaries, claims, splits and handover."""
