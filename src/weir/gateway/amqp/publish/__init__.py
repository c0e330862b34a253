"""What is published: routed, encoded once, and handed to queues."""
