"""Promises to Kafka's clients broken on purpose."""
