"""Filters on the server: parsed and compiled once, evaluated without opening payloads
(docs/reference/filters.md)."""
