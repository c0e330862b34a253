"""What consumers of queues are sent."""
