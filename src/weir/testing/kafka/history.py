"""What Kafka's clients and the final reader asked and were told (see `log_history`).

A transaction is named by a token that is its own: all that is sent in it says so.
"""

from collections.abc import Callable
from dataclasses import dataclass

from weir.testing.log_history import LogOp
from weir.testing.operations import Recorder


@dataclass(frozen=True, slots=True)
class KafkaOp(LogOp):
    """One operation of one client, in one of its lives."""

    part: str = ""
    offset: int = -1
    #: The transaction, if it is part of one.
    token: str = ""
    #: MARKS, READ: of who wants only what is committed. END, MARKER: whether it commits.
    commits: bool = False
    group: str = ""
    member: str = ""
    generation: int = -1
    #: Of a static member: its name.
    instance: str = ""
    #: JOIN: the partitions that the member has. ASSIGNED: those of its share.
    owned: tuple[str, ...] = ()
    #: JOIN: so long it may be silent.
    session_s: float = 0.0
    #: CONTENT, MARKER: the producer's id, and the leader epoch in which it was written.
    producer: int = -1
    epoch: int = -1
    high: int = -1
    stable: int = -1
    #: READ, ROW, SCANNED: the step after which the broker was asked for it.
    asked: int = -1
    #: Which broker answered.
    host: str = ""

    @property
    def log(self) -> str:
        return self.part

    @property
    def spot(self) -> int | None:
        return self.offset if self.offset >= 0 else None

    @property
    def facts(self) -> str:
        facts = (
            "" if self.offset < 0 else f"@{self.offset}",
            f" {self.payload}" if self.payload else "",
            f" in {self.token}" if self.token else "",
            f" group {self.group}" if self.group else "",
            "" if self.generation < 0 else f" generation {self.generation} as {self.member}",
            f" with {', '.join(self.owned)}" if self.owned else "",
            " commits" if self.commits else "",
            f" key {self.key}" if self.key else "",
            "" if self.due_at is None else f" not before {self.due_at:.3f}s",
            "" if self.producer < 0 else f" by {self.producer}",
            "" if self.epoch < 0 else f" in epoch {self.epoch}",
            "" if self.high < 0 else f" to {self.high}, stable to {self.stable}",
            f" of {self.host}" if self.host else "",
        )
        return self.part + "".join(facts)


class KafkaHistory(Recorder[KafkaOp]):
    """Of partitions, groups and transactions."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(KafkaOp, now)
