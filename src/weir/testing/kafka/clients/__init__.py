"""Simulated clients of Kafka's, who record all they ask and are told."""
