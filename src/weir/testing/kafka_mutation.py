"""What a mutation of the Kafka scenario is, and the plans in which mistakes matter."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from weir.model.ledger import Quorum
from weir.stream.settings import StreamSettings
from weir.testing.kafka_checkers import KafkaChecker
from weir.testing.kafka_plan import KafkaPlan
from weir.testing.plan import Fault


@dataclass(frozen=True, slots=True)
class KafkaMutation:
    """One way to break a promise."""

    sin: str
    apply: Callable[[], AbstractContextManager[Any]]
    #: The checkers of the promises that this breaks: each of them must find it, whatever the others find.
    found_by: tuple[KafkaChecker, ...]
    #: Fields of the plan, and of the storage's plan below, that are set so that the mistake matters.
    focus: dict[str, Any]
    storage: dict[str, Any]

    def narrow(self, plan: KafkaPlan) -> KafkaPlan:
        snapshots = self.focus.get("snapshots")
        focus = {name: value for name, value in self.focus.items() if name != "snapshots"}
        if snapshots is not None:
            focus["broker"] = replace(plan.broker, stamps_snapshot_every=snapshots)
        return replace(plan, storage=replace(plan.storage, **self.storage), **focus)


KAFKA_MUTATIONS: dict[str, KafkaMutation] = {}


def mutation(
    name: str, *found_by: KafkaChecker, storage: dict[str, Any] | None = None, **focus: Any
) -> Callable[[Callable[[], Iterator[None]]], None]:
    """Enter a generator function as a mutation; its docstring says the sin."""

    def enter(function: Callable[[], Iterator[None]]) -> None:
        sin = (function.__doc__ or name).strip()
        KAFKA_MUTATIONS[name] = KafkaMutation(sin, contextmanager(function), found_by, focus, storage or {})

    return enter


def often(*faults: Fault) -> dict[str, Any]:
    return {"faults": faults, "fault_every_s": 0.4, "duration_s": 6.0}


CRASHES = often(Fault.CRASH_CLIENT, Fault.LEASES)
RESTARTS = often(Fault.CRASH_CLIENT, Fault.RESTART_BOOKIE)
LOST = often(Fault.LOST_CONNECTIONS, Fault.SLOW_LINK)
SLOW_STATE = StreamSettings(quorum=Quorum(3, 2, 2), state_pause_s=5.0, retry_pause_s=0.05, roll_entries=20)
QUICK_STATE = replace(SLOW_STATE, state_pause_s=0.05)
#: Who is there, so that a mistake is not lost among others.
NOBODY: dict[str, Any] = {
    "plain": 0,
    "idempotent": 0,
    "writers": 0,
    "pipelines": 0,
    "processors": 0,
    "members": 0,
    "pulsar": False,
}
IDEMPOTENT = {**NOBODY, "idempotent": 2, "messages": 40, "in_parts": 1}
WRITERS = {**NOBODY, "writers": 2, "readers": 3, "aborts": 0.4, "in_parts": 2}
PIPELINES = {**NOBODY, "idempotent": 1, "writers": 1, "pipelines": 1, "instances": 2, "aborts": 0.4}
PROCESSORS = {**NOBODY, "idempotent": 2, "processors": 3, "in_parts": 2, "aborts": 0.1}
MEMBERS = {**NOBODY, "idempotent": 2, "members": 3, "in_parts": 2}
