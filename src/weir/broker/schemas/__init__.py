"""The schema registry: versions per topic and compatibility checks."""
