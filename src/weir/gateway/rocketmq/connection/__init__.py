"""One HTTP/2 connection: its calls, who makes them, and what they may cost."""
