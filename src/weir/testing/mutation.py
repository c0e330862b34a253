"""What a mutation is: a promise broken on purpose, in a run whose plan makes it matter.

A mutation is a plausible mistake, not vandalism: a check left out, a step skipped, an order turned round. Each
patches one seam of the product. If the checkers miss one, it is the scenario or the checkers that are wrong
(`tests/sim/test_mutations.py`). Each mutation names the checkers that have to find it; together the mutations of
a scenario name every checker that it has.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from weir.testing.checking import Checker
from weir.testing.storage.plan import Fault


@dataclass(frozen=True, slots=True)
class Mutation:
    """One way to break a promise."""

    #: What is done wrong.
    sin: str
    apply: Callable[[], AbstractContextManager[Any]]
    #: The checkers of the promises that this breaks: each of them must find it, whatever the others find.
    found_by: tuple[Checker, ...]
    #: Fields of the plan that are set, so that the mistake matters in most seeds.
    focus: dict[str, Any]


def narrowed(plan: Any, focus: Mapping[str, Any]) -> Any:
    """A plan with some fields set; a dictionary stands for fields of a value within."""
    return replace(
        plan,
        **{
            name: narrowed(getattr(plan, name), value) if isinstance(value, dict) else value
            for name, value in focus.items()
        },
    )


class Mutations(dict[str, Mutation]):
    """Those of one scenario, by name."""

    def add(self, name: str, *found_by: Checker, **focus: Any) -> Callable[[Callable[[], Iterator[None]]], None]:
        """Enter a generator function as a mutation; its docstring says the sin."""

        def enter(function: Callable[[], Iterator[None]]) -> None:
            self[name] = Mutation((function.__doc__ or name).strip(), contextmanager(function), found_by, focus)

        return enter


def often(*faults: Fault, duration_s: float = 6.0) -> dict[str, Any]:
    """A storage plan's fields: only these faults, and many of them."""
    return {"faults": faults, "fault_every_s": 0.4, "duration_s": duration_s}
