"""RocketMQ 5's gRPC protocol: connections, calls, groups at topics (docs/reference/rocketmq.md)."""
