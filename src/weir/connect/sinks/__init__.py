"""What topics have, into other systems: one module per type."""
