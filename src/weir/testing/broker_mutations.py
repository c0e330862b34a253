"""Promises of brokers broken on purpose: each mutation patches one seam of the product (see `mutations`)."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from weir.testing.broker_plan import BrokerPlan


@dataclass(frozen=True, slots=True)
class BrokerMutation:
    """One way to break a promise."""

    sin: str
    apply: Callable[[], AbstractContextManager[Any]]
    #: Fields of the plan, and of the storage's plan below, that are set so that the mistake matters.
    focus: dict[str, Any]
    storage: dict[str, Any]

    def narrow(self, plan: BrokerPlan) -> BrokerPlan:
        return replace(plan, storage=replace(plan.storage, **self.storage), **self.focus)


BROKER_MUTATIONS: dict[str, BrokerMutation] = {}
