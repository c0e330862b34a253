"""What RocketMQ's clients asked and were told, and what there was in the end."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from weir.testing.operations import Operation, Recorder


class RocketmqOpKind(Enum):
    #: A message was sent; ok: it was confirmed.
    SEND = "send"
    #: A half message was sent; ok: it has a transaction.
    PREPARE = "prepare"
    #: ok: it was confirmed that the half message is seen, or never will be.
    COMMIT = "commit"
    ROLL_BACK = "rollback"
    DELIVER = "deliver"
    #: ok: it was confirmed.
    ACK = "ack"
    #: The final consumer received and acknowledged it.
    CONTENT = "content"
    #: It was received again, after that was durable and all brokers had crashed.
    AGAIN = "again"
    #: The topic could not be emptied in the end.
    MISSING = "missing"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True)
class RocketmqOp(Operation):
    number: int = 0

    @property
    def facts(self) -> str:
        return f"{self.number or ''}"


class RocketmqHistory(Recorder[RocketmqOp]):
    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(RocketmqOp, now)
