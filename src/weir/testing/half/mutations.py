"""Promises of half, delayed and grouped messages broken on purpose: each mutation patches one seam of the product."""

from weir.testing.mutation import Mutations

HALF_MUTATIONS = Mutations()
