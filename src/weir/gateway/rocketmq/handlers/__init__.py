"""Handlers of RocketMQ calls, one function per gRPC method."""
