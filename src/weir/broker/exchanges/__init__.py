"""Exchanges and bindings of namespaces: kept, followed, and compiled into an index that routes."""
