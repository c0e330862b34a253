"""Functions of messages on Spark: the same code, as a streaming query (docs/reference/functions.md)."""
