"""Tenants, namespaces, topics, policies, grants and definitions in the metadata store."""
