"""Ownership of bundles: registration of brokers, claims, placement, handover and splits."""
