"""Calls about queues that another broker has, for protocols that cannot send their clients there.

The asker opens consumers, gives them credit and settles what they got; what was delivered comes as answers to one
waiting call for all consumers that one broker has at another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weir.model.batch import BatchFormat
from weir.model.topics import NamespaceName
from weir.wire.peer.calls import Done
from weir.wire.peer.protocol import Call, PeerRequest


@dataclass(frozen=True, slots=True)
class QueueAt:
    """A queue. The asker has checked that whoever asks it may use it."""

    namespace: NamespaceName
    name: str


@dataclass(frozen=True, slots=True)
class QueueIsHere(PeerRequest["QueueFound"]):
    """Whether a queue of this name is in your memory, and how it was declared."""

    namespace: NamespaceName
    name: str


@dataclass(frozen=True, slots=True)
class QueueFound:
    """`declared`: as declarations are stored; "" if there is none here. `connection`: whose own it is."""

    declared: str = ""
    connection: str = ""


@dataclass(frozen=True, slots=True)
class PublishToQueue(PeerRequest["Refused"]):
    """Put messages in: `encoded` has one after the other, each as long as `sizes` says."""

    queue: QueueAt
    encoded: bytes
    sizes: tuple[int, ...]
    persistent: bool = True
    deliver_at_ms: int | None = None
    expirations_ms: Mapping[int, int] = field(default_factory=dict)
    #: Producer id, epoch, sequence and checksum, if the broker itself sends it; none else.
    stamp: tuple[int, ...] = ()
    #: The topic keeps them for consumers of the queue, though it may have had none.
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """Places of the messages that were refused, because the queue is full."""

    places: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueNumbers:
    ready: int
    unacked: int
    consumers: int


@dataclass(frozen=True, slots=True)
class CountQueue(PeerRequest[QueueNumbers]):
    """`use`: this is a use of the queue, which renews its `x-expires`."""

    queue: QueueAt
    use: bool = False


@dataclass(frozen=True, slots=True)
class MessageCount:
    messages: int


@dataclass(frozen=True, slots=True)
class PurgeQueue(PeerRequest[MessageCount]):
    queue: QueueAt


@dataclass(frozen=True, slots=True)
class DeleteQueue(PeerRequest[MessageCount]):
    """For a role that the asker has authenticated."""

    queue: QueueAt
    role: str
    connection: str = ""
    if_unused: bool = False
    if_empty: bool = False


@dataclass(frozen=True, slots=True)
class ConsumeQueue(PeerRequest["Consuming"]):
    """One more consumer of a queue of yours for this broker, by the `asker`'s own number, for a role that it has
    authenticated; `getter`: one that takes
    messages one by one and counts as none. `stream_offset`: as `wire.queues` writes arguments."""

    queue: QueueAt
    asker: str
    number: int
    role: str
    getter: bool = False
    tag: str = ""
    exclusive: bool = False
    priority: int = 0
    no_ack: bool = False
    prefetch: int = 0
    address: str = ""
    stream_offset: str = ""
    filter_sql: str = ""
    filter_tags: str = ""


@dataclass(frozen=True, slots=True)
class Consuming:
    """It is there."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What becomes of messages of one consumer: ranges [first, end) of offsets, one number after the other.
    `credit`: how many more it may be given. `ends`: `retire` or `close` it, after all that."""

    number: int
    acked: tuple[int, ...] = ()
    requeued: tuple[int, ...] = ()
    rejected: tuple[int, ...] = ()
    credit: int = 0
    ends: str = ""


@dataclass(frozen=True, slots=True)
class SettleQueues(PeerRequest[Done]):
    """In this order; those of consumers that are gone are left out."""

    asker: str
    settled: tuple[Settled, ...]


@dataclass(frozen=True, slots=True)
class TakeOne(PeerRequest["Deliveries"]):
    """The next message for a getter; none if nothing is ready."""

    asker: str
    number: int


@dataclass(frozen=True, slots=True)
class RelayedDelivery:
    """A stored batch for the consumer of this number. `wanted`: places of its messages, none for all."""

    number: int
    base_offset: int
    count: int
    format: BatchFormat
    append_ms: int
    payload: bytes
    wanted: tuple[int, ...] = ()
    redelivered: int = 0


@dataclass(frozen=True, slots=True)
class Deliveries:
    """`closed`: why, by the number of the consumer. `stuck`: why what comes next cannot be read, by the same."""

    deliveries: tuple[RelayedDelivery, ...] = ()
    closed: Mapping[int, str] = field(default_factory=dict)
    stuck: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AwaitDeliveries(PeerRequest[Deliveries]):
    """Whatever comes for any consumer of the asker's; nothing after `wait_ms`. A broker that has consumers here
    and asks no more is taken for gone: what it has is requeued."""

    asker: str
    wait_ms: int


@dataclass(frozen=True, slots=True)
class DeliverReply(PeerRequest["ReplyTaken"]):
    """Give an answer to whoever waits under this name; without any parts: whether somebody does."""

    name: str
    parts: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplyTaken:
    taken: bool


CALLS: tuple[Call[Any], ...] = (
    Call(80, "queue_is_here", QueueIsHere, QueueFound),
    Call(81, "publish_to_queue", PublishToQueue, Refused),
    Call(82, "count_queue", CountQueue, QueueNumbers),
    Call(83, "purge_queue", PurgeQueue, MessageCount),
    Call(84, "delete_queue", DeleteQueue, MessageCount),
    Call(85, "consume_queue", ConsumeQueue, Consuming),
    Call(86, "settle_queues", SettleQueues, Done),
    Call(87, "take_one", TakeOne, Deliveries),
    Call(88, "await_deliveries", AwaitDeliveries, Deliveries),
    Call(89, "deliver_reply", DeliverReply, ReplyTaken),
)
