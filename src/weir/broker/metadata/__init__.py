"""What exists and what holds for it: tenants, namespaces, topics, policies, grants, SQL streams."""
