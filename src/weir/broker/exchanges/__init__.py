"""Exchanges and bindings of namespaces, compiled into a routing index."""
