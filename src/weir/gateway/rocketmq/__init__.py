"""RocketMQ 5's gRPC protocol: one connection, its calls, and what they ask of the broker."""
