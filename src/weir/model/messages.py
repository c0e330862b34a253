"""What a dead letter says of itself, in headers that every protocol can read: why, how often, and where from.

A message as every protocol knows it: what a batch of one protocol is translated through for another.

N protocols need N decoders to this and N encoders from it. Only where producer and consumer differ, or
a batch must be opened (to compact it, to hold a part of it back), does a message become one of these.

What became of a message: one thing that happened to neighbours in a log, as it is written down.

Half messages as values: what is prepared, how it is decided, what is known of one.

What waits for its moment, as values.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from weir.model.batch import HeldId
from weir.model.errors import InvalidNameError
from weir.model.ids import Buffer, value
from weir.model.topics import TopicName

#: The header by which a producer names what it delays, so that it can be cancelled.
DELAY_ID = b"weir-delay-id"
#: Headers by which Kafka's producers delay a message, until a moment or for so long, and end a delay.
DELIVER_AT, DELIVER_AFTER, CANCEL = b"weir-deliver-at", b"weir-deliver-after", b"weir-cancel"
_MAX_ID_BYTES = 256


@value
class Message:
    """`value` None is a tombstone; a header's value may be None, and a name may occur twice."""

    key: bytes | None
    value: Buffer | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    #: When it happened, in the producer's words (milliseconds since 1970); None if it did not say.
    event_ms: int | None = None
    #: When it was published, by the producer's or the broker's clock.
    publish_ms: int = 0
    #: Decides the partition and the order within a key-shared subscription, where that is not the key's business.
    ordering_key: bytes | None = None
    #: What only the protocol of this name can say, opaque to all others.
    native: tuple[str, bytes] | None = None


def delay_id_in(headers: Iterable[tuple[Buffer, Buffer | None]]) -> str | None:
    """The name of a delayed message among its headers; None if it has none that holds."""
    for name, text in headers:
        if name == DELAY_ID:
            if text is None or not 0 < len(text) <= _MAX_ID_BYTES:
                return None
            try:
                return str(text, "utf-8")
            except UnicodeDecodeError:
                return None
    return None


#: Of a producer group's name, as UTF-8.
MAX_GROUP_BYTES = 1024
#: The longest that nobody is asked about a half message.
MAX_RECOVERY_MS = 30 * 24 * 3600 * 1000


class Decision(Enum):
    COMMIT = "commit"
    ROLL_BACK = "rollback"


@dataclass(frozen=True, slots=True)
class Preparation:
    """That a batch is a half message. `group`: producers that can be asked what became of it. `recovery_ms`:
    nobody is asked before; None: as the broker is set."""

    group: str
    recovery_ms: int | None = None


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """One that is not decided. `checks`: how often it was asked about, or nobody was there to be asked."""

    id: HeldId
    group: str
    prepared_ms: int
    next_check_ms: int
    checks: int
    #: How many messages it has, and the size of its payload.
    count: int
    size: int


@dataclass(frozen=True, slots=True)
class Decided:
    """`again`: it was decided so before. `offset`: where a committed one begins in the topic; -1 where that is not
    known any more."""

    decision: Decision
    offset: int = -1
    again: bool = False


@dataclass(frozen=True, slots=True)
class HalfCounts:
    """Of a topic since it was loaded, and how many wait now; in batches."""

    waiting: int = 0
    prepared: int = 0
    committed: int = 0
    rolled_back: int = 0
    #: Of those rolled back, the ones that nothing was heard of.
    given_up: int = 0
    #: Questions that a producer was asked, and those that nobody was there for.
    checked: int = 0
    unasked: int = 0


#: Due at no moment: it waits for a decision.
FOREVER_MS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class HeldItem:
    """One held batch."""

    id: HeldId
    due_ms: int
    #: How many messages it has, and the size of its payload.
    count: int
    size: int


@dataclass(frozen=True, slots=True)
class HeldCount:
    """How much is held."""

    batches: int
    messages: int


#: Headers (Kafka, AMQP) or properties (Pulsar, RocketMQ) of a dead letter. Of one that died again after it was put
#: back the latest death holds.
REASON = "weir-dead-reason"
DELIVERIES = "weir-dead-deliveries"
TOPIC = "weir-dead-topic"
PARTITION = "weir-dead-partition"
OFFSET = "weir-dead-offset"
SUBSCRIPTION = "weir-dead-subscription"
#: When it was stored in its topic, and when it died: milliseconds since 1970.
STORED_MS = "weir-dead-stored-ms"
DIED_MS = "weir-dead-died-ms"
NAMES = (REASON, DELIVERIES, TOPIC, PARTITION, OFFSET, SUBSCRIPTION, STORED_MS, DIED_MS)

#: Properties that Pulsar's own clients give the dead letters that they write themselves, by a `DeadLetterPolicy`.
_REAL_TOPIC = "REAL_TOPIC"
_REAL_SUBSCRIPTION = "REAL_SUBSCRIPTION"
_RECONSUMED = "RECONSUMETIMES"
CLIENT_NAMES = (
    _REAL_TOPIC,
    _REAL_SUBSCRIPTION,
    _RECONSUMED,
    "ORIGIN_MESSAGE_ID",
    "ORIGIN_MESSAGE_IDY_TIME",
    "DELAY_TIME",
    "EXCEPTION_CLASS",
    "EXCEPTION_MESSAGE",
)
_CLIENT_REASON = "delivery_limit"


@dataclass(frozen=True, slots=True)
class Death:
    """`deliveries`: how often it was delivered. `topic`: with its partition, if it has any. `offset`: None if a
    Pulsar client wrote the letter: clients record message ids. `names`: the headers that tell of the death."""

    reason: str
    deliveries: int
    topic: TopicName
    offset: int | None
    subscription: str
    stored_ms: int
    died_ms: int
    names: Sequence[str] = NAMES

    def headers(self) -> list[tuple[str, bytes | None]]:
        partition = self.topic.partition
        said = {
            REASON: self.reason,
            DELIVERIES: str(self.deliveries),
            TOPIC: str(self.topic.base),
            PARTITION: None if partition is None else str(partition),
            OFFSET: None if self.offset is None else str(self.offset),
            SUBSCRIPTION: self.subscription,
            STORED_MS: str(self.stored_ms),
            DIED_MS: str(self.died_ms),
        }
        return [(name, text.encode()) for name, text in said.items() if text is not None]


def death_in(headers: Sequence[tuple[str, bytes | None]]) -> Death | None:
    """Read a dead letter's headers, Weir's own or those of Pulsar's clients; None if the message is no dead
    letter."""
    said = {name: value.decode(errors="replace") for name, value in headers if name in NAMES and value is not None}
    try:
        base = TopicName.parse(said[TOPIC])
        return Death(
            said.get(REASON, ""),
            int(said.get(DELIVERIES, "0")),
            base.at(int(said[PARTITION])) if PARTITION in said else base,
            int(said[OFFSET]),
            said.get(SUBSCRIPTION, ""),
            int(said.get(STORED_MS, "0")),
            int(said.get(DIED_MS, "0")),
        )
    except (KeyError, ValueError, InvalidNameError):
        return _client_death(headers)


def _client_death(headers: Sequence[tuple[str, bytes | None]]) -> Death | None:
    """A Pulsar client names the topic (with its partition), some clients name the subscription."""
    said = {name: value.decode(errors="replace") for name, value in headers if name in CLIENT_NAMES and value}
    deliveries = said.get(_RECONSUMED, "")
    try:
        return Death(
            _CLIENT_REASON,
            int(deliveries) if deliveries.isascii() and deliveries.isdigit() else 0,
            TopicName.parse(said[_REAL_TOPIC]),
            None,
            said.get(_REAL_SUBSCRIPTION, ""),
            0,
            0,
            CLIENT_NAMES,
        )
    except (KeyError, InvalidNameError):
        return None


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
