"""The transaction coordinator: states, shards, epochs and remote participants."""
