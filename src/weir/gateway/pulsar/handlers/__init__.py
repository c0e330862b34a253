"""One module per command or small group; `weir.gateway.pulsar.registry` says how they declare themselves."""
