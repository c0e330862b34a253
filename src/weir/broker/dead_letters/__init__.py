"""Dead letters: forwarding exactly once, listing, and redrive."""
