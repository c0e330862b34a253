"""Retries and dead letters of shared subscriptions in a simulated cluster."""
