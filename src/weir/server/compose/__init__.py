"""The composition root: a broker with all its parts and gateways, over any runtime, metadata and ledgers.

`weir up`, the simulations and the stages of tests differ in the runtime, the metadata and the ledgers that they
give, and in the values of `Composition`; what is wired to what is said here alone.
"""

from weir.server.compose.broker import compose_broker
from weir.server.compose.composed import ComposedBroker
from weir.server.compose.composition import Composition

__all__ = ["ComposedBroker", "Composition", "compose_broker"]
