"""What the runner wants of a connector that runs."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from weir.client.weir_cluster import Place
from weir.connect.definitions import Definition
from weir.model.ids import Buffer


@dataclass(frozen=True, slots=True)
class Message:
    """One message, of or for a topic by Kafka's name. `partition` None: by the key."""

    topic: str
    key: Buffer | None
    value: Buffer | None
    #: ms since 1970.
    timestamp: int
    headers: tuple[tuple[bytes, Buffer | None], ...] = ()
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A definition and where it runs. `id`: of the connector, which no other ever has."""

    place: Place
    definition: Definition
    id: str

    def option(self, name: str) -> Any:
        return self.definition.options[name]

    @property
    def group(self) -> str:
        """The subscription by which a sink reads; what it has not read stays in the topic."""
        return f"connect-{self.definition.name.local}"


@dataclass(slots=True)
class Status:
    """What a task says of itself; the runner looks at it."""

    position: str = ""
    lag: int = -1
    dead_letters: int = 0
    #: Whether something was taken that is not where it should be yet.
    waiting: bool = False
    #: How long to wait until the next step, if it had nothing to do.
    idle_s: float = field(default=0.2)


class Task(Protocol):
    """`open` first, then `step` again and again, then `close`; all by one thread. What they raise ends the task;
    another is opened later, and goes on from the position that was kept."""

    status: Status

    def open(self) -> None: ...

    def step(self) -> int:
        """Carry what there is, up to a batch; how many records it was, which are there for good. 0: wait before
        the next, as long as the status says."""

    def interrupt(self) -> None:
        """It shall end: by another thread, so that a long step does not have to be waited for. May do nothing."""

    def close(self) -> None: ...
