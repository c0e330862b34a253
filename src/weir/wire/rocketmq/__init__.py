"""RocketMQ 5's protocol (apache.rocketmq.v2): its messages, and the handles that clients carry for the server."""
