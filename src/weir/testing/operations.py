"""Operations of clients as values: what every history is made of, and the only thing that checkers read.

An operation has a beginning and, unless its client died first, an end. Both are steps of one counter, so that
"before" is never in doubt, and carry the virtual time for people.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Generic, TypeVar

#: The client that reads everything back after all faults are healed: what it asks must succeed.
FINAL = "final"


class Outcome(Enum):
    """What came back. FAILED says that an error was answered, not that nothing happened."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Operation:
    """What all operations say: who asked for what, when, and what came of it."""

    client: str
    kind: Enum
    began: int
    began_at: float
    ended: int | None = None
    ended_at: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    #: The error, when it FAILED.
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def final(self) -> bool:
        """Asked after all faults were healed and all nodes restarted."""
        return self.client.startswith(FINAL)

    @property
    def over(self) -> int:
        """The step at which it was over; where it began, if nobody knows."""
        return self.began if self.ended is None else self.ended

    @property
    def facts(self) -> str:
        """What it was about, for people."""
        return ""

    def __str__(self) -> str:
        span = f"{self.began_at:9.3f}s .. " + ("never    " if self.ended_at is None else f"{self.ended_at:8.3f}s")
        error = f": {self.error}" if self.error else ""
        return f"{span}  {self.client:<10} {self.kind.value:<9} {self.facts} -> {self.outcome.value}{error}"


AnyOp = TypeVar("AnyOp", bound=Operation)
Key = TypeVar("Key", bound=Hashable)


class Pending:
    """An operation under way. Ending it twice is an error of the harness; never ending it means UNKNOWN."""

    __slots__ = ("_began", "_recorder")

    def __init__(self, recorder: "Recorder[Any]", began: int) -> None:
        self._recorder = recorder
        self._began = began

    def ok(self, **facts: Any) -> None:
        """The client was told that it worked."""
        self._recorder.finish(self._began, Outcome.OK, **facts)

    def failed(self, error: BaseException) -> None:
        """The client was told an error, or knows that it will not hear an answer."""
        self._recorder.finish(self._began, Outcome.FAILED, error=f"{type(error).__name__}: {error}")


class Recorder(Generic[AnyOp]):
    """Records operations as they begin and end; `now` tells the virtual time."""

    def __init__(self, make: type[AnyOp], now: Callable[[], float]) -> None:
        self._make = make
        self._now = now
        self._step = 0
        #: By the step they began with, which orders them too.
        self._ops: dict[int, AnyOp] = {}

    def begin(self, client: str, kind: Enum, **facts: Any) -> Pending:
        """A client asks."""
        self._step += 1
        self._ops[self._step] = self._make(client, kind, self._step, self._now(), **facts)
        return Pending(self, self._step)

    def note(self, client: str, kind: Enum, **facts: Any) -> None:
        """Something happened to a client."""
        self.begin(client, kind, **facts).ok()

    def finish(self, began: int, outcome: Outcome, **facts: Any) -> None:
        """A client is answered."""
        op = self._ops[began]
        if op.ended is not None:
            raise ValueError(f"ended twice: {op}")
        self._step += 1
        self._ops[began] = replace(op, ended=self._step, ended_at=self._now(), outcome=outcome, **facts)

    @property
    def step(self) -> int:
        """The last step so far."""
        return self._step

    def ops(self) -> tuple[AnyOp, ...]:
        """Every operation so far, in the order in which they began."""
        return tuple(self._ops.values())


# --- selections -----------------------------------------------------------------------------------------------


def of(ops: Iterable[AnyOp], *kinds: Enum) -> list[AnyOp]:
    """Those of these kinds."""
    return [op for op in ops if op.kind in kinds]


def grouped(ops: Iterable[AnyOp], key: Callable[[AnyOp], Key]) -> dict[Key, list[AnyOp]]:
    found: dict[Key, list[AnyOp]] = {}
    for op in ops:
        found.setdefault(key(op), []).append(op)
    return found
