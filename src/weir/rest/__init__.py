"""HTTP server, table of routes, OpenAPI document, and forwarding of calls to other brokers."""
