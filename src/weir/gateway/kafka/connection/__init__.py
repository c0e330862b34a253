"""One Kafka client's connection: requests in, answers out, and what it may cost."""
