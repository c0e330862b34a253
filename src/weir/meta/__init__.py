"""The metadata store: one small interface, the compare-and-set loop, the key layout, and drivers."""
