"""Commands that run on Spark: the only ones that may import `weir.spark` (adr/0018)."""
