"""A cluster of real processes under load from official clients, killed and stopped in turn."""
