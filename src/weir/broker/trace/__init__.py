"""Message traces and OpenTelemetry spans (docs/reference/trace.md)."""
