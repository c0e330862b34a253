"""The embedded store served to other processes of the same machine or cluster, and their client of it."""
