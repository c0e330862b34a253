"""A warm Spark for `weir sql`: a process of the user's own that keeps a session, and how commands talk to it."""
