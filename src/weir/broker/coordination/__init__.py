"""Everything that coordinators do to partitions: here, or by asking the broker that has them."""
