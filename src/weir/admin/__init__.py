"""The admin REST API: Pulsar's paths, Weir's own paths, lookup, health and metrics."""
