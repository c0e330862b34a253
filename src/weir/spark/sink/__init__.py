"""The data sink `weir`: rows to topics, each epoch exactly once."""
