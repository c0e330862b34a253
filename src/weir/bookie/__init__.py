"""A storage node: journal, write cache, entry log, index, replay, garbage collection, server."""
