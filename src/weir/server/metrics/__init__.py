"""What this process counts, as families of the metrics page: a module for each part that counts."""
