"""Gateway for the gRPC protocol of RocketMQ 5."""
