"""Registry of tenants, namespaces and topics, with policies, grants, exchanges and definitions of pipelines."""
