"""RocketMQ's gateway in the simulation: brokers with gRPC listeners, and clients on simulated sockets."""
