"""What publishers and consumers of queues asked and were told, and what every queue had in the end."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from weir.testing.operations import Operation, Recorder


class QueueOpKind(Enum):
    #: A message was published; ok: it was confirmed.
    PUBLISH = "publish"
    #: A consumer began; what it sees is comparable with what it saw.
    CONSUME = "consume"
    DELIVER = "deliver"
    #: ok: the acknowledgement survives a crash from now on.
    ACK = "ack"
    REQUEUE = "requeue"
    REJECT = "reject"
    #: The final consumer found it in its queue, with so many deaths behind it.
    CONTENT = "content"
    #: The final consumer has emptied the queue.
    DRAINED = "drained"
    #: A queue could not be had in the end.
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class QueueOp(Operation):
    queue: str = ""
    #: Of one publisher the later ones are greater.
    number: int = 0
    #: PUBLISH: it may be gone with its broker.
    transient: bool = False
    #: CONSUME: nobody else consumes the queue meanwhile, and nothing in it expires.
    alone: bool = False

    @property
    def facts(self) -> str:
        return f"{self.queue} {self.number or ''}"


class QueueHistory(Recorder[QueueOp]):
    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(QueueOp, now)
