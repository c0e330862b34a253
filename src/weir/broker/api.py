"""What gateways and the admin API ask of the broker: values, and interfaces with few verbs.

Nothing here knows a protocol. Everything is asked in offsets; `Topic.position_of` and `offset_of` translate to
ledger positions for protocols whose message ids are made of them. There are no callbacks: what changes is
something to await. Every call that somebody makes for a user takes that user's `role`, and raises
NotAuthorisedError if the role may not.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from weir.model.batch import Batch, BatchFormat, Stamp
from weir.model.errors import NotAuthorisedError
from weir.model.ids import Buffer
from weir.model.topics import TopicName
from weir.model.value import value
from weir.runtime.byte_budget import ByteShare


class AccessMode(Enum):
    """How a producer shares its topic with others."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"
    WAIT_FOR_EXCLUSIVE = "wait-for-exclusive"
    EXCLUSIVE_WITH_FENCING = "exclusive-with-fencing"


class SubscriptionType(Enum):
    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    FAILOVER = "failover"
    KEY_SHARED = "key-shared"


@dataclass(frozen=True, slots=True)
class SchemaData:
    """A schema as a client sends it: `type` in Pulsar's words (AVRO, JSON, STRING, ...)."""

    type: str
    data: bytes
    name: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


# --- producing ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProducerRequest:
    """Who wants to produce. `name` None: the broker gives one. `topic_epoch`: of a reconnecting exclusive one."""

    role: str
    name: str | None = None
    access: AccessMode = AccessMode.SHARED
    topic_epoch: int | None = None
    schema: SchemaData | None = None
    encrypted: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    initial_subscription: str | None = None
    address: str = ""
    #: Whether the client made the name up, so that a taken one is an error rather than a reconnect.
    name_is_given: bool = False


@value
class Outgoing:
    """A batch that a producer sends: opaque bytes and the few facts that the broker needs."""

    payload: Buffer
    count: int
    format: BatchFormat
    #: The lowest and highest sequence id in it, for deduplication; -1 where the protocol has none.
    sequence: int = -1
    highest_sequence: int = -1
    #: When it may be seen, if later than now (milliseconds since 1970).
    deliver_at_ms: int | None = None
    #: A chunk or transaction part that deduplication and coalescing must leave alone.
    partial: bool = False
    #: Of an idempotent producer: duplicates are dropped, gaps refused, an old epoch is fenced.
    stamp: Stamp | None = None
    #: Part of the stamped producer's open transaction: consumers that want decided messages only wait for the end.
    transactional: bool = False
    #: What is stored in its place, in order, where its messages are not all treated alike: each as if it had been
    #: sent alone, and all have one receipt.
    parts: "tuple[Outgoing, ...]" = ()
    #: The name under which it can be cancelled while it is held.
    delay_id: str | None = None
    #: It is not stored, and what is held under this name is cancelled.
    cancels: str | None = None


@value
class Receipt:
    """Where the batch went. `duplicate`: it was there already and was not stored again. `held`: it waits in the
    holding area, and the position is its place there."""

    offset: int
    position: tuple[int, int]
    duplicate: bool = False
    held: bool = False


class Producer(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def last_sequence(self) -> int:
        """The highest sequence id stored for this name; -1 if none."""

    @property
    def topic_epoch(self) -> int | None: ...

    @property
    def schema_version(self) -> bytes: ...

    async def wait_admitted(self) -> None:
        """Wait until it may send: a wait-for-exclusive producer until it is the only one."""

    def publish(self, outgoing: Outgoing) -> "asyncio.Future[Receipt]":
        """Store a batch. Decides at once; a refusal is an already failed future. Receipts come in order."""

    def publish_all(self, outgoings: Sequence[Outgoing]) -> "asyncio.Future[Receipt] | None":
        """Store batches that came together: the receipt of the first, which the others follow without a gap. None
        if they cannot be stored as one, and nothing was done: then `publish` each."""

    async def wait_capacity(self) -> None:
        """Wait while quota, rate limit or memory say that the producer shall send no more for now."""

    async def closed(self) -> str:
        """Wait until the broker closes it (topic moved, deleted, fenced by another); answers why."""

    async def close(self) -> None: ...


# --- consuming ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartAt:
    """Where a new subscription begins: at an offset, or at the end of the topic ("latest"), or at its start."""

    offset: int | None = None
    latest: bool = False


@dataclass(frozen=True, slots=True)
class KeyShared:
    """Sticky: the consumer names its hash ranges (both ends included). Auto-split: the broker divides."""

    sticky: bool = False
    ranges: Sequence[tuple[int, int]] = ()
    allow_out_of_order: bool = False


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    role: str
    subscription: str
    type: SubscriptionType = SubscriptionType.EXCLUSIVE
    consumer_name: str = ""
    priority: int = 0
    durable: bool = True
    #: Used when the subscription is new (or not durable).
    start: StartAt = field(default_factory=lambda: StartAt(latest=True))
    read_compacted: bool = False
    key_shared: KeyShared | None = None
    schema: SchemaData | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    #: What it and others of its connection may have in hand together. Whoever takes deliveries by `next` releases
    #: their payloads' bytes once they are read.
    delivery_share: ByteShare | None = None


@value
class Delivery:
    """A stored batch for one consumer. `wanted`: a bit per message that this consumer shall process (None: all).
    `redelivered`: how often it was delivered before."""

    batch: Batch
    wanted: int | None = None
    redelivered: int = 0


class Consumer(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def denied(self) -> NotAuthorisedError | None:
        """Why it may not be there any more, if that is why it was closed."""

    @property
    def subscription(self) -> str: ...

    @property
    def active(self) -> bool:
        """Whether it gets messages now: false for a standby of a failover subscription."""

    @property
    def mark_delete(self) -> int:
        """The subscription's offset at and below which everything is acknowledged; -1 if nothing is."""

    @property
    def backlog(self) -> int:
        """How many messages the subscription has not acknowledged."""

    async def next(self, credit: int) -> list[Delivery]:
        """Wait for deliveries that cost at most `credit` messages (a whole batch may exceed it by its size; the
        caller's credit then goes negative). Cancelling loses nothing."""

    def ack(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Acknowledge offsets, each range [first, end)."""

    def ack_up_to(self, offset: int) -> None:
        """Acknowledge everything up to and with the offset; not for shared and key-shared ones."""

    def redeliver(self, ranges: Sequence[tuple[int, int]] | None = None) -> None:
        """Give back unacknowledged offsets, or all of this consumer's, for delivery anew."""

    async def seek(self, offset: int) -> None:
        """Move the subscription; its consumers are closed, as they must connect anew."""

    async def active_change(self, seen: bool) -> bool:
        """Wait until `active` is no longer `seen`; answers what it is."""

    async def persisted(self) -> None:
        """Wait until everything acknowledged so far survives a crash."""

    async def unsubscribe(self, *, force: bool = False) -> None:
        """End the subscription; it may have no other consumers unless forced."""

    async def closed(self) -> str:
        """Wait until the broker closes it; answers why."""

    async def close(self) -> None: ...


# --- topics -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Position:
    """A message's place as ledger and distance; (-1, -1) before the first message."""

    ledger: int
    entry: int
    batch_index: int = -1


class Topic(Protocol):
    @property
    def name(self) -> TopicName: ...

    async def produce(self, request: ProducerRequest) -> Producer: ...

    async def subscribe(self, request: SubscribeRequest) -> Consumer: ...

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def terminated(self) -> bool:
        """Whether it takes no more messages, for good: a consumer that has everything has reached its end."""

    async def offset_at(self, moment_ms: int) -> int:
        """The first offset appended at or after the moment."""

    def position_of(self, offset: int) -> tuple[int, int]:
        """(ledger, distance) of an offset; of the end: where the next message will be, or (-1, -1)."""

    def offset_of(self, ledger: int, entry: int) -> int:
        """The offset of a position. A ledger that was trimmed away counts as the start, one that does not exist
        yet (or (max, max), Pulsar's "latest") as the end, (-1, -1) as the start."""

    async def last_position(self) -> Position:
        """Of the last message stored, with its index in its batch."""

    async def read(self, offset: int, max_bytes: int) -> list[Batch]: ...

    async def wait_beyond(self, offset: int) -> None: ...

    @property
    def stable_offset(self) -> int:
        """Before it every transaction is decided; the end where none is open."""

    def aborted(self, first: int, end: int) -> "list[AbortedTransaction]":
        """Transactions that were aborted and have messages in [first, end)."""

    def idempotent_producers(self) -> "list[ProducerInfo]":
        """Those that stored something here not long ago."""

    def on_growth(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call a plain function whenever the end or the stable offset has moved, or the topic has died; answers
        how to stop that."""


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """Messages of `producer_id` from `first_offset` up to its abort marker at `last_offset` do not count."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """An idempotent producer as a topic knows it. `last_sequence`: -1 if it stored nothing in this epoch;
    `open_since`: the offset where its open transaction begins, -1 if it has none."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_ms: int
    open_since: int = -1


class Broker(Protocol):
    async def topic(self, name: TopicName, *, role: str, create: bool = True) -> Topic:
        """The topic, loaded and owned by this broker. TopicNotFoundError, or made by policy if `create`;
        NotOwnerError (with the owner's address) if another broker has it."""

    async def partitions(self, name: TopicName, *, role: str, create: bool = True) -> int:
        """How many partitions the topic has; 0 if it is not partitioned."""

    async def owner(self, name: TopicName, *, role: str) -> "Owner":
        """Who serves the topic, or will."""

    async def topics(self, namespace: str, *, role: str, pattern: str | None = None) -> list[TopicName]:
        """Every topic (each partition on its own) of the namespace."""

    @property
    def loaded(self) -> Sequence[Topic]:
        """The topics that this broker serves now."""

    async def delete(self, name: TopicName, *, force: bool = False) -> None:
        """End a topic with all of its partitions and everything in them; whether the caller may is not asked.
        Those that are connected are a reason not to, unless forced (NotAllowedError)."""

    async def authenticate(
        self, method: str, credentials: bytes, *, certificate: bytes | None = None
    ) -> "Identity":
        """Who is behind the credentials; NotAuthenticatedError."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A role, and until when its credentials are good (milliseconds since 1970; None: for ever)."""

    role: str
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Owner:
    """Addresses of the broker that serves a topic; `here` if it is this one."""

    here: bool
    pulsar_url: str
    http_url: str
