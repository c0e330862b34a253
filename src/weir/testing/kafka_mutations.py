"""Promises to Kafka's clients broken on purpose: each patches one seam of the product (see `mutations`)."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from weir.testing.kafka_plan import KafkaPlan


@dataclass(frozen=True, slots=True)
class KafkaMutation:
    """One way to break a promise."""

    sin: str
    apply: Callable[[], AbstractContextManager[Any]]
    #: The checkers that have to find it.
    found_by: tuple[str, ...]
    #: Fields of the plan, and of the storage's plan below, that are set so that the mistake matters.
    focus: dict[str, Any]
    storage: dict[str, Any]

    def narrow(self, plan: KafkaPlan) -> KafkaPlan:
        return replace(plan, storage=replace(plan.storage, **self.storage), **self.focus)


KAFKA_MUTATIONS: dict[str, KafkaMutation] = {}


def _mutation(
    name: str, *found_by: str, storage: dict[str, Any] | None = None, **focus: Any
) -> Callable[[Callable[[], Iterator[None]]], None]:
    """Enter a generator function as a mutation; its docstring says the sin."""

    def enter(function: Callable[[], Iterator[None]]) -> None:
        sin = (function.__doc__ or name).strip()
        KAFKA_MUTATIONS[name] = KafkaMutation(sin, contextmanager(function), found_by, focus, storage or {})

    return enter
