"""What a topic is: its log with its state, its readers by offset, its stats."""
