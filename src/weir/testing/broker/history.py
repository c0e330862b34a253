"""What producers, consumers and the final reader of topics asked and were told (see `log_history`)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from weir.testing.log_history import LogOp
from weir.testing.operations import Recorder
from weir.wire.pulsar.ids import MessageId


class MessagePosition(NamedTuple):
    """A message's place as its id says it; `message` is 0 outside of batches."""

    ledger: int
    entry: int
    message: int = 0

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}" + (f"/{self.message}" if self.message else "")


def place_of(at: MessageId) -> MessagePosition:
    return MessagePosition(at.ledger, at.entry, max(0, at.batch_index))


@dataclass(frozen=True, slots=True)
class BrokerOp(LogOp):
    """One operation of one client. A consumer is named by its handle: what one connection sees is comparable."""

    topic: str = ""
    subscription: str = ""
    place: MessagePosition | None = None
    #: CONTENT: messages in its batch; 0 outside of batches.
    batch: int = 0
    #: PUBLISH, RECEIPT: on which connection of the producer.
    session: int = 0
    #: SUBSCRIBE: which broker; LED: who has the topics of the bundle, "" if nobody has.
    broker: str = ""
    #: LED: since which leader epoch.
    epoch: int = -1

    @property
    def log(self) -> str:
        return self.topic

    @property
    def spot(self) -> MessagePosition | None:
        return self.place

    @property
    def facts(self) -> str:
        facts = (
            f"/{self.subscription}" if self.subscription else "",
            "" if self.place is None else f" at {self.place}",
            f" payload {self.payload}" if self.payload else "",
            "" if self.key is None else f" key {self.key}",
            "" if self.due_at is None else f" not before {self.due_at:.3f}s",
            f" on connection {self.session}" if self.session else "",
            f" by {self.broker}" if self.broker else "",
            f" in epoch {self.epoch}" if self.epoch >= 0 else "",
        )
        return self.topic + "".join(facts)


class BrokerHistory(Recorder[BrokerOp]):
    """Of topics and their subscriptions."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(BrokerOp, now)
