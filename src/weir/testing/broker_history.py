"""What producers, consumers and the final reader asked and were told, as values: all that the checkers read.

As in `weir.testing.history`, an operation begins and, unless its client died first, ends; both are steps of one
counter. A delivery is written down when it arrives at the client, before any of the client's own queues, so that
"arrived after the acknowledgement was answered" is never in doubt on one connection.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from weir.testing.history import FINAL, Outcome
from weir.wire.pulsar.ids import MessageId


class Kind(Enum):
    """What was asked, or what happened."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    DELIVER = "deliver"
    ACK = "ack"
    ACK_UP_TO = "ack-up-to"
    #: A whole entry was given back.
    REDELIVER = "redeliver"
    SEEK = "seek"
    CANCEL = "cancel"
    #: The final reader found this message at this place.
    CONTENT = "content"
    #: The final reader has read the topic to its end.
    READ_ALL = "read-all"
    #: The final consumer has taken everything that the subscription had left.
    DRAINED = "drained"


class Place(NamedTuple):
    """A message's place as its id says it; `message` is 0 outside of batches."""

    ledger: int
    entry: int
    message: int = 0

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}" + (f"/{self.message}" if self.message else "")


def place_of(at: MessageId) -> Place:
    return Place(at.ledger, at.entry, max(0, at.batch_index))


@dataclass(frozen=True, slots=True)
class BrokerOp:
    """One operation of one client. A consumer is named by its handle: what one connection sees is comparable."""

    client: str
    kind: Kind
    topic: str
    began: int
    began_at: float
    ended: int | None = None
    ended_at: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    subscription: str = ""
    place: Place | None = None
    payload: str | None = None
    key: str | None = None
    #: PUBLISH: deduplication is on, so that sending again is harmless.
    once: bool = False
    #: PUBLISH: nobody may see it before this virtual time, even by a clock that is as wrong as clocks may be.
    due_at: float | None = None
    #: CONTENT: messages in its batch; 0 outside of batches.
    batch: int = 0
    #: SUBSCRIBE: which broker.
    broker: str = ""
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
        where = self.topic + (f"/{self.subscription}" if self.subscription else "")
        facts = (
            "" if self.place is None else f" at {self.place}",
            "" if self.payload is None else f" payload {self.payload}",
            "" if self.key is None else f" key {self.key}",
            "" if self.due_at is None else f" not before {self.due_at:.3f}s",
            f" by {self.broker}" if self.broker else "",
        )
        error = f": {self.error}" if self.error else ""
        what = f"{self.client:<10} {self.kind.value:<9} {where}{''.join(facts)}"
        return f"{span}  {what} -> {self.outcome.value}{error}"


class Pending:
    """An operation under way; never ending it means UNKNOWN."""

    __slots__ = ("_began", "_history")

    def __init__(self, history: "BrokerHistory", began: int) -> None:
        self._history = history
        self._began = began

    def ok(self, *, place: Place | None = None, broker: str = "") -> None:
        """The client was told that it worked."""
        self._history.finish(self._began, Outcome.OK, place=place, broker=broker)

    def failed(self, error: BaseException) -> None:
        """The client was told an error, or knows that it will not hear an answer."""
        self._history.finish(self._began, Outcome.FAILED, error=f"{type(error).__name__}: {error}")


class BrokerHistory:
    """Records operations as they begin and end; `now` tells the virtual time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._step = 0
        self._ops: dict[int, BrokerOp] = {}

    def begin(
        self,
        client: str,
        kind: Kind,
        topic: str,
        *,
        subscription: str = "",
        place: Place | None = None,
        payload: str | None = None,
        key: str | None = None,
        once: bool = False,
        due_at: float | None = None,
        batch: int = 0,
    ) -> Pending:
        """A client asks."""
        self._step += 1
        self._ops[self._step] = BrokerOp(
            client,
            kind,
            topic,
            self._step,
            self._now(),
            subscription=subscription,
            place=place,
            payload=payload,
            key=key,
            once=once,
            due_at=due_at,
            batch=batch,
        )
        return Pending(self, self._step)

    def finish(
        self, began: int, outcome: Outcome, *, place: Place | None = None, broker: str = "", error: str = ""
    ) -> None:
        """A client is answered."""
        op = self._ops[began]
        if op.ended is not None:
            raise ValueError(f"ended twice: {op}")
        self._step += 1
        self._ops[began] = replace(
            op,
            ended=self._step,
            ended_at=self._now(),
            outcome=outcome,
            place=op.place if place is None else place,
            broker=broker,
            error=error,
        )

    def ops(self) -> tuple[BrokerOp, ...]:
        """Every operation so far, in the order in which they began."""
        return tuple(self._ops.values())
