"""Subscriptions: cursors, consumers, dispatchers, redelivery."""
