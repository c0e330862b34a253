"""A topic for gateways and administrators: produce, subscribe, read by offset, and administration of its storage.

Includes dead letters (list and redrive) and half messages (RocketMQ's prepared messages). A producer prepares a
half message with an `Outgoing` that has `half`; the receipt has `held`, and its position is the id. Consumers do
not see the message before `StoredTopic.half.decide` commits it. If no decision arrives within the recovery time,
the broker sends a check to a live producer of its group (`Broker.half_checkers`), and again after every interval;
it rolls the message back after a fixed number of checks.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from weir.broker.api.consumers import Consumer, StartAt, SubscribeRequest
from weir.broker.api.producers import Producer, ProducerRequest
from weir.broker.api.stats import CompactionStatus, InternalStats, TopicStats
from weir.model.batch import Batch, HeldId
from weir.model.messages import Death, Decided, Decision, HalfCounts, HalfMessage, HeldCount, HeldItem, Message
from weir.model.retry import RetryPolicy
from weir.model.subscriptions import MessageFilter
from weir.model.topics import TopicName
from weir.runtime.budgets import ByteShare


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Selects dead letters that meet all given conditions. `topic`, `subscription`: their origin; a topic without
    a partition matches every partition. `since_ms`, `until_ms`: range of their time of death. `sql`: a condition
    over key and properties, in the language of subscription filters. `before`: only letters at lower offsets of
    their topic, so that a redrive in several calls skips letters that died again meanwhile."""

    topic: TopicName | None = None
    subscription: str | None = None
    key: bytes | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    sql: str = ""
    before: int | None = None


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A message in a dead letter topic. `death`: None for a message without dead letter properties, which cannot
    be redriven."""

    offset: int
    message: Message
    death: Death | None


@dataclass(frozen=True, slots=True)
class LetterPage:
    """A page of dead letters. `next`: the start offset of the next page; None at the end. `looked_at`: the number
    of scanned letters. `end`: the page excludes letters from this offset on, and so do the next pages if the
    caller passes it as `before`."""

    letters: Sequence[StoredLetter]
    next: int | None
    looked_at: int
    end: int


@dataclass(frozen=True, slots=True)
class Redriven:
    """The result of a redrive. `moved`: the number of letters returned to their origin. `kept`: the number of
    selected letters that stayed, because the original topic no longer exists or a consumer has them in flight."""

    moved: int
    kept: int
    next: int | None
    looked_at: int
    end: int


class DeadLetterBox(Protocol):
    """The dead letters of one topic: the unacknowledged messages of its subscription `queue`; all messages if the
    topic has no such subscription, as in dead letter topics that Pulsar's clients created."""

    @property
    def waiting(self) -> int: ...

    async def page(self, wanted: LetterFilter, *, start: int, most: int) -> LetterPage:
        """The first selected letters from the offset on. FilterError."""

    async def redrive(
        self,
        wanted: LetterFilter,
        *,
        start: int,
        most: int,
        check: Callable[[TopicName], None] | None = None,
        to: Callable[[Message], TopicName] | None = None,
    ) -> Redriven:
        """Return the selected letters to their original topics, exactly once even across failures; durable when it
        returns. `check`: raises for a topic that the caller may not produce to. `to`: chooses another topic, or
        the partition of one, for each letter; messages without an original topic are then included. FilterError;
        SubscriptionBusyError if their subscription has a consumer that receives all messages in order."""


@dataclass(frozen=True, slots=True)
class HalfCheck:
    """A check of an undecided half message; the producer answers with a decision."""

    topic: TopicName
    message: HalfMessage
    #: The prepared batch.
    batch: Batch


class HalfChecker(Protocol):
    """A live producer that answers checks of half messages."""

    def check_half(self, check: HalfCheck) -> bool:
        """Send the check, at once; False if this producer is unavailable and the caller must try another."""


class HalfCheckers(Protocol):
    """The connected producers of this broker that answer checks of half messages."""

    def register(self, group: str, checker: HalfChecker, *, role: str) -> Callable[[], None]:
        """Register a checker for half messages of the group: it receives checks in rotation with others, if the
        role may produce to their topics. Returns the function that ends the registration, which is idempotent."""


class HalfMessages(Protocol):
    """The half messages of one topic."""

    @property
    def counts(self) -> HalfCounts: ...

    async def waiting(self, *, group: str | None = None) -> Sequence[HalfMessage]:
        """Undecided half messages, of all groups or of one, the oldest first."""

    async def get(self, half: HeldId) -> tuple[HalfMessage, Batch]:
        """An undecided half message; NotHeldError if it does not exist."""

    async def decide(self, half: HeldId, decision: Decision, *, role: str) -> Decided:
        """Commit it, so that it is in the topic when this returns, or roll it back, so that no consumer ever sees
        it. Idempotent. HalfDecidedError after the opposite decision; NotHeldError if the message never existed, or
        its decision is old."""


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a message as ledger and distance; (-1, -1) before the first message."""

    ledger: int
    entry: int
    batch_index: int = -1


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """An aborted transaction: readers skip messages of `producer_id` from `first_offset` up to its abort marker at
    `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """A topic's state of an idempotent producer. `last_sequence`: -1 if it stored nothing in this epoch;
    `open_since`: the start offset of its open transaction, -1 if it has none."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_ms: int
    open_since: int = -1


class LogReader(Protocol):
    """A topic's log for readers by offset."""

    @property
    def start_offset(self) -> int:
        """The first readable offset; messages after it may be missing."""

    def read_cached(self, offset: int, max_bytes: int) -> list[Batch] | None:
        """The result of `read` if it is in memory; None if `read` must wait."""

    async def read(self, offset: int, max_bytes: int) -> list[Batch]:
        """Batches from the one that contains `offset` on, or from the first after it; empty only at the end."""

    async def offset_at(self, moment_ms: int) -> int:
        """The first remaining offset appended at or after the moment; the end if none is."""

    def visible(self, batch: Batch) -> int | None:
        """The remaining messages of a batch, as bits; None for all of them."""

    def passing(self, wanted: MessageFilter) -> Callable[[Batch], int | None]:
        """A function that returns the messages of a batch that pass the filter, as bits; None for all of them.
        FilterError."""

    @property
    def whole(self) -> bool:
        """Whether the reader sees every stored message: callers then need no `visible`."""

    def aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        """Aborted transactions that may have messages in [first, end)."""


class Topic(Protocol):
    """A topic, or one partition of one, that this broker serves."""

    @property
    def name(self) -> TopicName: ...

    @property
    def alive(self) -> bool:
        """Whether this broker still serves it. If not, the caller must get the topic again."""

    @property
    def stored(self) -> "StoredTopic | None":
        """The administration of a persistent topic; None for a non-persistent one."""

    def reader(self) -> LogReader:
        """A reader by offset. Cheap: get one for each read, because the topic's policies may change."""

    def stats(self) -> TopicStats: ...

    async def produce(self, request: ProducerRequest) -> Producer: ...

    async def subscribe(self, request: SubscribeRequest, *, delivery_share: ByteShare | None = None) -> Consumer:
        """`delivery_share`: the byte budget of deliveries for all consumers of the connection. The caller of
        `next` must release the bytes of the payloads after it has read them."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def terminated(self) -> bool:
        """Whether it permanently refuses messages: a consumer without backlog has reached the end."""

    async def offset_at(self, moment_ms: int) -> int:
        """The first offset appended at or after the moment."""

    def position_of(self, offset: int) -> tuple[int, int]:
        """(ledger, distance) of an offset; for the end: the position of the next message, or (-1, -1)."""

    def offset_of(self, ledger: int, entry: int) -> int:
        """The offset of a position. A trimmed ledger and (-1, -1) give the start, a future ledger (or (max, max),
        Pulsar's "latest") gives the end."""

    async def last_position(self) -> Position:
        """The position of the last stored message, with its index in its batch."""

    async def read(self, offset: int, max_bytes: int) -> list[Batch]: ...

    async def wait_beyond(self, offset: int) -> None: ...

    @property
    def leader_epoch(self) -> int:
        """Grows whenever the owner of the topic changes, and never decreases."""

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """The largest epoch with messages up to this one, and the start offset of the next epoch (the end, if none
        follows). (-1, -1) for a future epoch; for an epoch before all known ones, itself and the first known
        offset."""

    def epoch_at(self, offset: int) -> int:
        """The epoch of the message at the offset; for the end: the current epoch."""

    @property
    def stable_offset(self) -> int:
        """The last stable offset: every transaction before it is decided; the end if none is open."""

    def aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        """Aborted transactions with messages in [first, end)."""

    def idempotent_producers(self) -> list[ProducerInfo]:
        """Idempotent producers that recently stored messages here."""

    def on_growth(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call a plain function whenever the end or the stable offset moves, or the topic closes; return the
        function that ends this."""


class SubscriptionControl(Protocol):
    """Administration of a subscription. Changes are durable after `persisted`."""

    @property
    def name(self) -> str: ...

    @property
    def properties(self) -> Mapping[str, str]: ...

    @property
    def retry(self) -> RetryPolicy:
        """The policy for failed messages: from its properties, with the topic's policies as defaults."""

    @property
    def backlog(self) -> int:
        """The number of unacknowledged messages."""

    def set_properties(self, properties: Mapping[str, str]) -> None: ...

    def skip(self, messages: int) -> int:
        """Acknowledge the next messages; return their number."""

    def skip_all(self) -> int: ...

    def expire_before(self, offset: int) -> int:
        """Acknowledge everything before the offset; return the number of messages."""

    async def seek(self, offset: int) -> None:
        """Acknowledge everything before the offset and nothing from it on; consumers must reconnect."""

    async def deliver_again(self, offset: int) -> bool:
        """Redeliver a single message, acknowledged or not; durable when it returns. False if its first delivery is
        still pending. OffsetTrimmedError if the message does not exist, NotAllowedError if the subscription cannot
        redeliver it: the subscription of a consumer group, or a filter that excludes the message."""

    async def waiting_batch(self, number: int) -> Batch | None:
        """The `number`th batch, from 1 on, with unacknowledged messages."""

    async def waiting(self, count: int) -> list[tuple[Batch, int]]:
        """The first unacknowledged messages, each as its batch and its index there, in delivery order; for a queue
        with priorities the highest priorities first."""

    async def persisted(self) -> None:
        """Wait until all changes so far survive a crash."""


class HeldMessages(Protocol):
    """Delayed messages of a topic before their delivery time."""

    def items(self, after: HeldItem | None = None) -> AsyncGenerator[HeldItem, None]:
        """The delayed messages in the order of their delivery times."""

    async def count(self) -> HeldCount: ...

    async def cancel(self, held: HeldId) -> None:
        """Cancel a delayed message; NotHeldError after its delivery."""

    async def release(self, held: HeldId) -> int:
        """Deliver a delayed message now; return its offset. NotHeldError after its delivery."""


class StoredTopic(Protocol):
    """Administration of a persistent topic."""

    @property
    def topic(self) -> Topic:
        """The topic itself: `topic.stored` is this."""

    @property
    def deduplicates(self) -> bool: ...

    @property
    def size_bytes(self) -> int:
        """The size of its log and of its compacted log."""

    @property
    def log_bytes(self) -> int:
        """The size of its log alone."""

    def bytes_from(self, offset: int) -> int:
        """The approximate number of bytes from the offset on."""

    def ledger_range(self, ledger: int) -> tuple[int, int] | None:
        """The offsets of a ledger, [first, end); None if it has no such ledger."""

    def internal_stats(self) -> InternalStats: ...

    # --- subscriptions

    @property
    def subscriptions(self) -> Mapping[str, SubscriptionControl]: ...

    @property
    def groups(self) -> Sequence[str]:
        """Consumer groups with members here; a group has no subscription before its first commit."""

    def subscription(self, name: str) -> SubscriptionControl:
        """SubscriptionNotFoundError if it does not exist."""

    async def create_subscription(
        self, name: str, start: StartAt, *, properties: Mapping[str, str] | None = None
    ) -> SubscriptionControl:
        """A durable subscription without consumers."""

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """SubscriptionBusyError while it has consumers, unless forced."""

    @property
    def dead_letters(self) -> DeadLetterBox:
        """The dead letters in this topic, if it is a dead letter topic."""

    # --- messages

    @property
    def held(self) -> HeldMessages | None:
        """The delayed messages; None if the topic never had any."""

    @property
    def half(self) -> HalfMessages:
        """The half messages: prepared, and not yet committed or rolled back."""

    async def find(self, key: bytes, limit: int) -> list[tuple[Batch, int]]:
        """The latest messages of a key, each as its batch and its index there, the latest first. NotAllowedError
        where the topic has no index of keys."""

    async def terminate(self) -> Position:
        """Refuse all further messages permanently; return the position of the last message."""

    async def truncate(self) -> None:
        """Delete all messages; subscriptions continue from the end."""

    async def delete_before(self, offset: int) -> None:
        """Delete all messages before the offset, for every reader, regardless of retention."""

    @property
    def compaction(self) -> CompactionStatus:
        """The status of the last compaction."""

    def compact(self) -> None:
        """Begin a compaction; NotAllowedError while one is running."""
