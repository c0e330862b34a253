"""Subscriptions and their consumers: dispatch, flow control, acknowledgements and redelivery."""
