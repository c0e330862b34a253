"""Wire protocols over `weir.broker.api`, one folder each; they never import one another."""
