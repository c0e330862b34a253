"""Values as typed columns, by schema: Avro, Protobuf, JSON, plain and key-value."""
