"""Destinations as matchers keep them, counted by the bindings that lead to them."""

from typing import TypeAlias

from weir.model.exchanges import Destination

#: A queue by its bare name, which is quick to hash and to sort; an exchange as it is.
Target: TypeAlias = str | Destination
#: How many bindings lead to each.
Counted: TypeAlias = dict[Target, int]


def target(destination: Destination) -> Target:
    return destination if destination.exchange else destination.name


def count(counted: Counted, destination: Destination) -> None:
    to = target(destination)
    counted[to] = counted.get(to, 0) + 1


def uncount(counted: Counted, destination: Destination) -> None:
    """One that is there."""
    to = target(destination)
    left = counted[to] - 1
    if left:
        counted[to] = left
    else:
        del counted[to]
