"""A client's connection: how it is opened, what it may cost, and how it ends."""
