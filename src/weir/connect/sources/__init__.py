"""What other systems have, into topics: one module per type."""
