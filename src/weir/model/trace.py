"""What became of a message: one thing that happened to neighbours in a log, as it is written down."""

from dataclasses import dataclass
from enum import Enum

#: The topic of each namespace in which it is written down what becomes of the messages of the others.
TRACE_TOPIC = "weir_trace"


class TraceKind(Enum):
    """What happened."""

    #: A producer sent it, and it is in the log.
    STORED = "stored"
    #: It waits for its moment, or to be committed.
    HELD = "held"
    #: Its moment came: it is in the log now.
    RELEASED = "released"
    DELIVERED = "delivered"
    ACKNOWLEDGED = "acknowledged"
    #: It was given back, and will be delivered again.
    RETRIED = "retried"
    #: It will not be delivered: left out by a filter, expired, skipped, or a dead letter.
    DROPPED = "dropped"


@dataclass(slots=True)
class TraceEvent:
    """It happened to the messages [first, end) of a topic, at a moment by the broker's clock; -1: they have no
    offsets yet. `took_ms`: how long it took, or how long it was since the one before."""

    event: str
    topic: str
    ms: int
    broker: str
    first: int = -1
    end: int = -1
    took_ms: float = 0.0
    #: Who: a producer, or a consumer of a subscription; and from where.
    producer: str = ""
    subscription: str = ""
    consumer: str = ""
    address: str = ""
    #: How often it was delivered before.
    times: int = 0
    reason: str = ""
    #: Where it was held, and until when.
    held: str = ""
    due_ms: int = 0
    #: The position of the first message: what its id is made of.
    ledger: int = -1
    entry: int = -1
    #: Of each message: its key, and the trace that its producer put it into (W3C); "" for none.
    keys: tuple[str, ...] = ()
    traces: tuple[str, ...] = ()
