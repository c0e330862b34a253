"""Transaction messages: prepared, decided by their producer, asked about when nothing is heard."""
