"""What Kafka's clients asked and were told, and what the final reader found, as values: all that checkers read.

As in `weir.testing.history`, an operation begins and, unless its client died first, ends; both are steps of one
counter. A transaction is named by a token that is its own: all that is sent in it says so.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from weir.testing.history import FINAL, Outcome


class KafkaKind(Enum):
    """What was asked, or what happened."""

    #: A message was sent; one operation for each time.
    PUBLISH = "publish"
    #: The first of what an idempotent producer has under way was refused as being out of order.
    REFUSED = "refused"
    #: A partition told how far it goes (`high`, `stable`).
    MARKS = "marks"
    #: A reader, or a member of a group, got a message.
    READ = "read"
    #: A consumer of a Pulsar subscription got a message.
    DELIVER = "deliver"
    #: A member got its share: one operation for each partition.
    ASSIGNED = "assigned"
    #: A position was asked for (`offset`), in a transaction or not.
    COMMIT = "commit"
    #: A position was told.
    POSITION = "position"
    #: A transaction was to be ended.
    END = "end"
    #: The final reader found a message, or a marker, or saw it among what is committed.
    CONTENT = "content"
    MARKER = "marker"
    VISIBLE = "visible"
    #: The final reader has read the partition to its end; the final consumer has emptied the subscription.
    READ_ALL = "read-all"
    DRAINED = "drained"
    #: Something could not be had in the end.
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class KafkaOp:
    """One operation of one client, in one of its lives."""

    client: str
    kind: KafkaKind
    began: int
    began_at: float
    ended: int | None = None
    ended_at: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    part: str = ""
    offset: int = -1
    payload: str = ""
    #: The transaction, if it is part of one.
    token: str = ""
    #: PUBLISH: by an idempotent producer, so that sending again is harmless.
    once: bool = False
    #: MARKS, READ: of who wants only what is committed. END, MARKER: whether it commits.
    commits: bool = False
    group: str = ""
    member: str = ""
    generation: int = -1
    #: CONTENT, MARKER: the producer's id.
    producer: int = -1
    high: int = -1
    stable: int = -1
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def final(self) -> bool:
        """Asked after all faults were healed and all nodes restarted."""
        return self.client.startswith(FINAL)

    def __str__(self) -> str:
        span = f"{self.began_at:9.3f}s .. " + ("never    " if self.ended_at is None else f"{self.ended_at:8.3f}s")
        facts = (
            f" {self.part}" if self.part else "",
            "" if self.offset < 0 else f"@{self.offset}",
            f" {self.payload}" if self.payload else "",
            f" in {self.token}" if self.token else "",
            f" group {self.group}" if self.group else "",
            "" if self.generation < 0 else f" generation {self.generation} as {self.member}",
            " commits" if self.commits else "",
            "" if self.producer < 0 else f" by {self.producer}",
            "" if self.high < 0 else f" to {self.high}, stable to {self.stable}",
        )
        error = f": {self.error}" if self.error else ""
        return f"{span}  {self.client:<8} {self.kind.value:<8}{''.join(facts)} -> {self.outcome.value}{error}"


class KafkaPending:
    """An operation under way; never ending it means UNKNOWN."""

    __slots__ = ("_began", "_history")

    def __init__(self, history: "KafkaHistory", began: int) -> None:
        self._history = history
        self._began = began

    def ok(self, **facts: Any) -> None:
        """The client was told that it worked."""
        self._history.finish(self._began, Outcome.OK, **facts)

    def failed(self, error: BaseException) -> None:
        """The client was told an error, or knows that it will not hear an answer."""
        self._history.finish(self._began, Outcome.FAILED, error=str(error))


class KafkaHistory:
    """Records operations as they begin and end; `now` tells the virtual time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._step = 0
        self._ops: dict[int, KafkaOp] = {}

    def begin(self, client: str, kind: KafkaKind, **facts: Any) -> KafkaPending:
        """A client asks."""
        self._step += 1
        self._ops[self._step] = KafkaOp(client, kind, self._step, self._now(), **facts)
        return KafkaPending(self, self._step)

    def note(self, client: str, kind: KafkaKind, **facts: Any) -> None:
        """Something happened to a client."""
        self.begin(client, kind, **facts).ok()

    def finish(self, began: int, outcome: Outcome, **facts: Any) -> None:
        """A client is answered."""
        op = self._ops[began]
        if op.ended is not None:
            raise ValueError(f"ended twice: {op}")
        self._step += 1
        self._ops[began] = replace(op, ended=self._step, ended_at=self._now(), outcome=outcome, **facts)

    def ops(self) -> tuple[KafkaOp, ...]:
        """Every operation so far, in the order in which they began."""
        return tuple(self._ops.values())
