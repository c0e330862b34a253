"""One module per API: what it answers, and in which versions."""
