"""AMQP 0-9-1 as RabbitMQ speaks it: connections, channels, exchanges, queues and their consumers."""
