"""The data source `weir`: topics as tables and as streams."""
