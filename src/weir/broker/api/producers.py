"""Producing: who wants to, what is sent, and where it went."""

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
    #: What the client calls itself, for stats.
    client_version: str = ""
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
    #: It need not outlive the broker: it is kept in memory.
    in_memory: bool = False
    #: The name under which it can be cancelled while it is held.
    delay_id: str | None = None
    #: It is not stored, and what is held under this name is cancelled.
    cancels: str | None = None
    #: It is a half message: seen by nobody before it is committed (`api.half_messages`).
    half: Preparation | None = None
    #: The only subscription that gets it; None: all of them do. Only what is stamped can be addressed.
    subscription: str | None = None


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

    @property
    def open(self) -> bool:
        """Whether the broker has not closed it. It closes a producer whose write failed; a new one may send."""

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
