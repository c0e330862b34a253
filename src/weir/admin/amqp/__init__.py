"""RabbitMQ's management API: what its tools ask for under `/api`, answered in its words."""
