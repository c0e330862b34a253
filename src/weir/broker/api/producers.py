"""The producer interface: requests for producers, outgoing batches, and receipts."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from weir.broker.api.schemas import SchemaData
from weir.model.batch import BatchFormat, Stamp
from weir.model.ids import Buffer, value
from weir.model.messages import Preparation


class AccessMode(Enum):
    """How a producer shares its topic with others."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"
    WAIT_FOR_EXCLUSIVE = "wait-for-exclusive"
    EXCLUSIVE_WITH_FENCING = "exclusive-with-fencing"


@dataclass(frozen=True, slots=True)
class ProducerRequest:
    """A request for a producer. `name` None: the broker assigns a name. `topic_epoch`: from a reconnecting
    exclusive producer."""

    role: str
    name: str | None = None
    access: AccessMode = AccessMode.SHARED
    topic_epoch: int | None = None
    schema: SchemaData | None = None
    encrypted: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    initial_subscription: str | None = None
    address: str = ""
    #: Name and version of the client library, for stats.
    client_version: str = ""
    #: Whether the client generated the name, so that a name in use is an error rather than a reconnect.
    name_is_given: bool = False


@value
class Outgoing:
    """A batch from a producer: opaque bytes and the few facts that the broker needs."""

    payload: Buffer
    count: int
    format: BatchFormat
    #: The lowest and highest sequence id in it, for deduplication; -1 where the protocol has none.
    sequence: int = -1
    highest_sequence: int = -1
    #: Delivery time of a delayed message (milliseconds since 1970).
    deliver_at_ms: int | None = None
    #: A chunk or transaction part that deduplication and coalescing must leave alone.
    partial: bool = False
    #: From an idempotent producer: the broker drops duplicates, refuses gaps and fences an old epoch.
    stamp: Stamp | None = None
    #: Part of the stamped producer's open transaction: consumers of committed messages wait for its end.
    transactional: bool = False
    #: Batches to store instead of this one, in order, if its messages need different treatment: the broker treats
    #: each like a separate batch, and they share one receipt.
    parts: "tuple[Outgoing, ...]" = ()
    #: Not persistent: the broker keeps it in memory only.
    in_memory: bool = False
    #: The name for cancelling this delayed message before its delivery time.
    delay_id: str | None = None
    #: Not stored: the broker cancels the delayed message of this name.
    cancels: str | None = None
    #: A half message: invisible to consumers until its commit (`api.topics`).
    half: Preparation | None = None
    #: The only subscription that receives it; None: all of them. Only a stamped batch can name a subscription.
    subscription: str | None = None


@value
class Receipt:
    """The position of a stored batch. `duplicate`: an earlier batch is the same, and the broker did not store it
    again. `held`: it is a delayed or half message, and the position is its place in the holding area."""

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

    @property
    def open(self) -> bool:
        """False once the broker closed it. The broker closes a producer after a failed write; a new one may
        send."""

    async def wait_admitted(self) -> None:
        """Wait until it may send: a wait-for-exclusive producer waits until it is the only one."""

    def publish(self, outgoing: Outgoing) -> "asyncio.Future[Receipt]":
        """Store a batch. Decides at once; a refusal is an already failed future. Receipts complete in order."""

    def publish_all(self, outgoings: Sequence[Outgoing]) -> "asyncio.Future[Receipt] | None":
        """Store batches together: returns the receipt of the first batch, and the others follow without a gap.
        None if the broker cannot store them as one; nothing is stored then, and the caller must `publish` each."""

    async def wait_capacity(self) -> None:
        """Wait while a quota, a rate limit or memory pressure pauses the producer."""

    async def closed(self) -> str:
        """Wait until the broker closes it (topic moved, deleted, fenced by another); return the reason."""

    async def close(self) -> None: ...
