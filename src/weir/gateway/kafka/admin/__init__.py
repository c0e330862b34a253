"""What the administrators' calls have in common, and Kafka's configs."""
