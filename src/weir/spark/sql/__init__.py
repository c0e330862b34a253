"""`weir sql`: topics as tables, streams as queries that keep running, on Spark."""
