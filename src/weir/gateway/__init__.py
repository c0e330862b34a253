"""Wire protocols over `weir.broker.api`, one package each. Gateways never import one another."""
