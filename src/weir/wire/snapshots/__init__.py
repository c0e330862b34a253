"""What brokers keep in the state of streams: one module per kind of record, all over `weir.wire.snapshots.fields`.

Every record says its version first, or has none and never changes. None has a checksum of its own: the state log
writes each into a ledger entry, whose checksum is verified wherever it is read (`weir.wire.entry`). Decoders raise
WireError, and UnknownVersionError for what a newer Weir wrote, and nothing else; all are fuzzed
(`weir.testing.codecs.snapshots`).
"""
