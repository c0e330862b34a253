"""AMQP 0-9-1 as RabbitMQ speaks it: connections, channels, methods, consumers (docs/reference/amqp.md)."""
