"""AMQP 0-9-1 as RabbitMQ speaks it: bytes to values and back, for both roles, without any I/O."""
