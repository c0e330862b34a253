"""Commands on topics and what stands around them: namespaces, tenants, subscriptions, schemas, policies."""
