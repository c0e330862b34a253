"""One channel of a connection: its commands, confirms, transactions, and what it has not acknowledged."""
