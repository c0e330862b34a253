"""Promises of several brokers broken on purpose (see `weir.testing.mutation`)."""

from weir.testing.mutation import Mutations

MULTIBROKER_MUTATIONS = Mutations()
