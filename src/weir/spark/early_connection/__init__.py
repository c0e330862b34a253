"""A folder for the PYTHONPATH of Spark's source processes; nothing imports it as a package."""
