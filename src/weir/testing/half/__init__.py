"""Half messages, recalled messages and message groups, in simulation."""
