"""A small, blocking client of the Kafka protocol, for Spark's tasks: whole record batches in and out.

`Cluster` knows the brokers and who leads what; `offsets`, `fetching`, `producing`, `transactions` and `positions`
are what can be asked of it. It speaks to any Kafka broker, Weir's included.
"""
