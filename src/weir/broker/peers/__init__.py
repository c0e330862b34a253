"""Calls between brokers: the handlers of each broker, the client and the server (docs/adr/0025, item 8)."""
