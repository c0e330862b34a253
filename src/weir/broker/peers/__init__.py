"""The protocol between brokers: client, server and calls (docs/adr/0025, item 8)."""
