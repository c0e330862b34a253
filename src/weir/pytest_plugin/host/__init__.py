"""The brokers' side: a process that has Weir loaded, and one process per broker that is forked from it."""
