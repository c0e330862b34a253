"""What users of half, delayed and grouped messages asked and were told, and what was there in the end."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from weir.testing.operations import Operation, Recorder


class HalfOpKind(Enum):
    #: What is the same in the whole run.
    RULES = "rules"
    #: A half message was prepared; ok: its id is known.
    PREPARE = "prepare"
    COMMIT = "commit"
    ROLL_BACK = "roll back"
    #: Its producer was asked about it.
    CHECK = "check"
    #: A delayed message was held; ok: its id is known.
    HOLD = "hold"
    #: It was cancelled; failed with NotHeldError: it was too late.
    CANCEL = "cancel"
    #: A message of a group was sent.
    SEND = "send"
    #: A consumer got it.
    SEEN = "seen"
    ACK = "ack"
    GIVE_BACK = "give back"
    #: A consumer has gone.
    END = "end"
    #: It is in the log.
    CONTENT = "content"
    #: A topic could not be had in the end.
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class HalfOp(Operation):
    topic: str = ""
    number: int = 0
    #: The message group.
    group: str = ""
    #: HOLD: not to be seen before, in ms of the wall clock; SEEN: when it was.
    moment_ms: int = 0
    #: RULES: what nothing is heard of is rolled back within the run.
    gives_up: bool = False
    #: COMMIT, ROLL_BACK: it was decided so before.
    again: bool = False

    @property
    def facts(self) -> str:
        return f"{self.topic} {self.group}{self.number or ''}"


class HalfHistory(Recorder[HalfOp]):
    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(HalfOp, now)
