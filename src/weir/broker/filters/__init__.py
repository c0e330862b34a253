"""Message filters: selectors compiled once and evaluated without opening payloads (docs/reference/filters.md)."""
