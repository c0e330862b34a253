"""Real processes for tests: Weir, etcd, official clients."""
