"""Questions for a broker of RocketMQ's protocol, and what Apache RocketMQ answered."""
