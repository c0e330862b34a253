"""Dead letters: what subscriptions and queues give up, sent on exactly once, and put back where it came from."""
