"""What is received: by group and topic, with the time until which each message is invisible."""
