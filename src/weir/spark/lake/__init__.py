"""Topics as Iceberg tables in a folder or an object store (the extra `lake`): docs/reference/lake.md,
docs/adr/0043."""
