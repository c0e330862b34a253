"""What is sent: checked, encoded, and handed to the partitions of a topic."""
