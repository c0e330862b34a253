"""Kafka's clients in simulation, and stages on which tests speak to the Kafka gateway."""
