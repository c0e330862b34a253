"""Several brokers: calls that reach one which does not have the queue are made at the one that has it."""
