"""What a topic's log implies beyond its batches: producer state, transaction index, read-committed view."""
