"""The schema registry: versions of each topic, and which schema may follow which."""
