"""The admin REST API in Pulsar's words, HTTP lookup, metrics and health."""
