"""Balance: a broker measures its load by bundle; one of them, the leader, moves and splits what is uneven."""
