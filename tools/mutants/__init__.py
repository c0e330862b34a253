"""Mutation tests of the write path; see `__main__`."""
