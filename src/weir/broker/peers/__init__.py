"""Brokers among themselves: what each answers to the others, and how it asks them (docs/adr/0025, item 8)."""
