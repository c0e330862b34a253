"""A topic as gateways and administrators see it: produce, subscribe, read by offset, and what it is made of.

Dead letters that wait in a topic: looked at, and put back where they came from.

Half messages: prepared, seen by nobody before they are committed, asked about when nothing is heard of them.

One is prepared by publishing an `Outgoing` whose `half` is set; the receipt is `held`, and its position the id. It
is decided by `StoredTopic.half.decide`. When nothing was heard for its recovery time, and then again after every
interval, a live producer of its group is asked (`Broker.half_checkers`); after so many rounds it is rolled back.
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
    """Which dead letters are meant: those for which all holds that is said. `topic`, `subscription`: where they
    come from, any partition if none is named. `since_ms`, `until_ms`: when they died. `sql`: a condition over key
    and properties, as filters of subscriptions have. `before`: those at lower offsets of
    their topic, so that a redrive in several calls does not reach letters that died again meanwhile."""

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
    """`death`: None of a message that does not say of itself that it is one, and cannot be put back."""

    offset: int
    message: Message
    death: Death | None


@dataclass(frozen=True, slots=True)
class LetterPage:
    """`next`: the offset from which another call goes on; None at the end. `looked_at`: how many there were.
    `end`: letters at this offset and above are not part of the page, nor of its next ones if it is passed on as
    `before`."""

    letters: Sequence[StoredLetter]
    next: int | None
    looked_at: int
    end: int


@dataclass(frozen=True, slots=True)
class Redriven:
    """`moved`: how many are where they came from again. `kept`: how many stayed, of those that were meant: the
    topic that they came from is no more, or somebody has them."""

    moved: int
    kept: int
    next: int | None
    looked_at: int
    end: int


class DeadLetterBox(Protocol):
    """The dead letters of one topic: the messages that its subscription `queue` has not acknowledged; all of
    them if there is no such subscription, as in topics that Pulsar's clients made for letters."""

    @property
    def waiting(self) -> int: ...

    async def page(self, wanted: LetterFilter, *, start: int, most: int) -> LetterPage:
        """From the offset on, the first ones that are meant. FilterError."""

    async def redrive(
        self,
        wanted: LetterFilter,
        *,
        start: int,
        most: int,
        check: Callable[[TopicName], None] | None = None,
        to: Callable[[Message], TopicName] | None = None,
    ) -> Redriven:
        """Put these back into the topics that they came from, exactly once, whatever happens; durable when it
        returns. `check`: raises for a topic into which nothing may be put. `to`: chooses another topic, or the
        partition of one, for each; then messages that name no topic are redriven, too. FilterError;
        SubscriptionBusyError if their subscription has consumers that take all in order."""


@dataclass(frozen=True, slots=True)
class HalfCheck:
    """The question what became of a half message; it is answered by deciding it."""

    topic: TopicName
    message: HalfMessage
    #: As it was prepared.
    batch: Batch


class HalfChecker(Protocol):
    """A live producer."""

    def check_half(self, check: HalfCheck) -> bool:
        """Ask it, at once; False if it cannot be asked now, and another is to be."""


class HalfCheckers(Protocol):
    """Who can be asked, of all producers that are connected to this broker."""

    def register(self, group: str, checker: HalfChecker, *, role: str) -> Callable[[], None]:
        """From now on the checker is asked about half messages of the group, in turn with others, if the role may
        produce to their topics; answers how to end that. Fine to end twice."""


class HalfMessages(Protocol):
    """The half messages of one topic."""

    @property
    def counts(self) -> HalfCounts: ...

    async def waiting(self, *, group: str | None = None) -> Sequence[HalfMessage]:
        """Those that are not decided, or of a group, the oldest first."""

    async def get(self, half: HeldId) -> tuple[HalfMessage, Batch]:
        """One that is not decided; NotHeldError if there is none."""

    async def decide(self, half: HeldId, decision: Decision, *, role: str) -> Decided:
        """Commit it, so that it is in the topic when this returns, or roll it back, so that nobody will ever see
        it. Fine to ask again. HalfDecidedError if it was decided otherwise; NotHeldError if there never was such
        a message, or it was decided long ago."""


@dataclass(frozen=True, slots=True)
class Position:
    """A message's place as ledger and distance; (-1, -1) before the first message."""

    ledger: int
    entry: int
    batch_index: int = -1


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


class LogReader(Protocol):
    """What a reader by offset sees of a topic."""

    @property
    def start_offset(self) -> int:
        """The first offset that may be asked for; messages after it may be missing."""

    def read_cached(self, offset: int, max_bytes: int) -> list[Batch] | None:
        """What `read` would answer, if that can be told without waiting."""

    async def read(self, offset: int, max_bytes: int) -> list[Batch]:
        """Batches from the one that holds `offset` on, or from the first after it; none only at the end."""

    async def offset_at(self, moment_ms: int) -> int:
        """The first offset appended at or after the moment, and still there; the end if there is none."""

    def visible(self, batch: Batch) -> int | None:
        """The messages of a batch that are still there, as bits; None for all of them."""

    def passing(self, wanted: MessageFilter) -> Callable[[Batch], int | None]:
        """Tells of a batch which messages pass a filter, as bits; None for all of them. FilterError."""

    @property
    def whole(self) -> bool:
        """Whether it sees all that is stored: then `visible` need not be asked."""

    def aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        """Aborted transactions of which [first, end) may hold messages."""


class Topic(Protocol):
    """A topic, or one partition of one, that this broker serves."""

    @property
    def name(self) -> TopicName: ...

    @property
    def alive(self) -> bool:
        """Whether it is still served here. One that has died is to be asked for anew."""

    @property
    def stored(self) -> "StoredTopic | None":
        """What administrators ask of a topic that keeps its messages; None of one that keeps none."""

    def reader(self) -> LogReader:
        """What readers by offset see now. Cheap: ask for each read, since a topic's policies may change."""

    def stats(self) -> TopicStats: ...

    async def produce(self, request: ProducerRequest) -> Producer: ...

    async def subscribe(self, request: SubscribeRequest, *, delivery_share: ByteShare | None = None) -> Consumer:
        """`delivery_share`: what the consumer and others of its connection may have in hand together. Whoever
        takes deliveries by `next` releases their payloads' bytes once they are read."""

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
    def leader_epoch(self) -> int:
        """Grows whenever the topic gets another owner, and never goes back."""

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to this one in which something was written, and where the next one began; the
        end, if none did. (-1, -1) of an epoch that is yet to come; of one before all that is known, itself and
        the first offset that is."""

    def epoch_at(self, offset: int) -> int:
        """The epoch in which the message at the offset was written; of the end: the current one."""

    @property
    def stable_offset(self) -> int:
        """Before it every transaction is decided; the end where none is open."""

    def aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        """Transactions that were aborted and have messages in [first, end)."""

    def idempotent_producers(self) -> list[ProducerInfo]:
        """Those that stored something here not long ago."""

    def on_growth(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call a plain function whenever the end or the stable offset has moved, or the topic has died; answers
        how to stop that."""


class SubscriptionControl(Protocol):
    """A subscription as administrators move it. What is moved is durable after `persisted`."""

    @property
    def name(self) -> str: ...

    @property
    def properties(self) -> Mapping[str, str]: ...

    @property
    def retry(self) -> RetryPolicy:
        """What becomes of messages that fail: its properties, and where these are silent the topic's policies."""

    @property
    def backlog(self) -> int:
        """How many messages are not acknowledged."""

    def set_properties(self, properties: Mapping[str, str]) -> None: ...

    def skip(self, messages: int) -> int:
        """Acknowledge the next messages; answers how many there were."""

    def skip_all(self) -> int: ...

    def expire_before(self, offset: int) -> int:
        """Acknowledge everything before the offset; answers how many messages that were."""

    async def seek(self, offset: int) -> None:
        """Everything before the offset is acknowledged, nothing from it on; consumers must connect anew."""

    async def deliver_again(self, offset: int) -> bool:
        """One message alone comes again, acknowledged or not; durable then. False if it comes anyway, since nobody
        has it yet. OffsetTrimmedError if there is no such message, NotAllowedError if the subscription can have no
        single one: a consumer group's, or one whose filter leaves it out."""

    async def waiting_batch(self, number: int) -> Batch | None:
        """The `number`th batch, from 1 on, of which something is not acknowledged."""

    async def waiting(self, count: int) -> list[tuple[Batch, int]]:
        """The first messages that are not acknowledged, each as its batch and its index there, in the order in
        which they would be delivered; of a queue with priorities the most urgent ones first."""

    async def persisted(self) -> None:
        """Wait until everything done so far survives a crash."""


class HeldMessages(Protocol):
    """Messages that wait for their moment."""

    def items(self, after: HeldItem | None = None) -> AsyncGenerator[HeldItem, None]:
        """In the order of their moments."""

    async def count(self) -> HeldCount: ...

    async def cancel(self, held: HeldId) -> None:
        """It will never be seen; NotHeldError if it is too late."""

    async def release(self, held: HeldId) -> int:
        """Let it be seen now; NotHeldError if it is too late."""


class StoredTopic(Protocol):
    """What a topic that keeps its messages shows to administrators."""

    @property
    def topic(self) -> Topic:
        """The topic itself: `topic.stored` is this."""

    @property
    def deduplicates(self) -> bool: ...

    @property
    def size_bytes(self) -> int:
        """What its log takes, with what compaction made of it."""

    @property
    def log_bytes(self) -> int:
        """What its log alone takes."""

    def bytes_from(self, offset: int) -> int:
        """About how many bytes lie from the offset on."""

    def ledger_range(self, ledger: int) -> tuple[int, int] | None:
        """The offsets of a ledger, [first, end); None if it has no such ledger."""

    def internal_stats(self) -> InternalStats: ...

    # --- subscriptions

    @property
    def subscriptions(self) -> Mapping[str, SubscriptionControl]: ...

    @property
    def groups(self) -> Sequence[str]:
        """Consumer groups that have members here, with a subscription or, before their first commit, without."""

    def subscription(self, name: str) -> SubscriptionControl:
        """SubscriptionNotFoundError if there is none."""

    async def create_subscription(
        self, name: str, start: StartAt, *, properties: Mapping[str, str] | None = None
    ) -> SubscriptionControl:
        """A durable subscription without consumers."""

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """SubscriptionBusyError while it has consumers, unless forced."""

    @property
    def dead_letters(self) -> DeadLetterBox:
        """Those that wait here, if it is where any go."""

    # --- messages

    @property
    def held(self) -> HeldMessages | None:
        """What waits for its moment; None while nothing ever did."""

    @property
    def half(self) -> HalfMessages:
        """Those that wait to be committed or rolled back."""

    async def find(self, key: bytes, limit: int) -> list[tuple[Batch, int]]:
        """The latest messages of a key, each as its batch and its index there, the latest first. NotAllowedError
        where the topic has no index of keys."""

    async def terminate(self) -> Position:
        """Take no more messages, for good; answers the position of the last one."""

    async def truncate(self) -> None:
        """Forget every message; subscriptions go on from the end."""

    async def delete_before(self, offset: int) -> None:
        """Forget every message before the offset, for every reader, whatever retention says."""

    @property
    def compaction(self) -> CompactionStatus:
        """How the last compaction went."""

    def compact(self) -> None:
        """Begin a compaction; NotAllowedError while one is running."""
