"""What became of messages, of topics where that is written down (docs/reference/trace.md)."""
