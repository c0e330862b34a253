"""Subscriptions and their consumers: who gets which messages, and what they acknowledged."""
