"""What brokers are asked, and what RabbitMQ answered: see `python -m tests.gateway.amqp.behaviour`."""
