"""Prepared messages (RocketMQ: half messages): storage, decisions, and check-backs of producers."""
