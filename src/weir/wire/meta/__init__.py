"""The metadata store served to other processes: hello, requests and responses as bytes
(docs/internals/wire.md)."""
