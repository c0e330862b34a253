"""Kafka's protocol as bytes and values, for both roles: broker and client."""
