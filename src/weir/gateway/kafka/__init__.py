"""Kafka's protocol: sessions, producers, fetches, one handler module per API family (docs/reference/kafka.md)."""
