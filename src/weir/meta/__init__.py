"""The metadata store: one interface, the compare-and-set loop, the key layout, and drivers."""
