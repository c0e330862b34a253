"""Kafka's protocol, served over any `weir.broker.api.Broker` (docs/reference/kafka.md)."""
