"""What Weir promises to Kafka's clients, as pure functions over histories."""
