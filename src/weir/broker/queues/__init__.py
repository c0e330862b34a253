"""AMQP queues over topics: arguments, policies, limits, and durable, memory and remote queues."""
