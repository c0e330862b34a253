"""Request handlers, grouped by concept; each declares its API and versions."""
