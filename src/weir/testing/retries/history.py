"""What publishers and consumers of a retried subscription asked and were told, and what there was in the end."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from weir.testing.operations import Operation, Recorder


class RetryOpKind(Enum):
    #: A message was published; ok: it was confirmed.
    PUBLISH = "publish"
    #: A consumer got it, for the nth time as it was told.
    DELIVER = "deliver"
    #: ok: the acknowledgement survives a crash from now on.
    ACK = "ack"
    FAIL = "fail"
    REJECT = "reject"
    #: The final consumer found it: not acknowledged, or as a dead letter.
    CONTENT = "content"
    #: A place could not be emptied in the end.
    MISSING = "missing"
    #: The final consumer has emptied both.
    DRAINED = "drained"


@dataclass(frozen=True, slots=True)
class RetryOp(Operation):
    #: Of one message, whichever copy of it.
    number: int = 0
    #: CONTENT: where it was; MISSING: what could not be had.
    place: str = ""
    #: CONTENT, of a dead letter: why, and after how many deliveries.
    reason: str = ""
    deliveries: int = 0

    @property
    def facts(self) -> str:
        return f"{self.number or ''} {self.place} {self.reason}"


class RetryHistory(Recorder[RetryOp]):
    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(RetryOp, now)
