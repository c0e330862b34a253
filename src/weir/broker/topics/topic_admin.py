"""Administration of a stored topic: its storage, subscriptions, delayed messages, truncation and compaction."""

from collections.abc import Mapping, Sequence

from weir.broker.api.consumers import StartAt
from weir.broker.api.stats import CompactionStatus, ConsumerStats, InternalStats
from weir.broker.api.topics import HeldMessages, Position, Topic
from weir.broker.context import GroupAssignments
from weir.broker.dead_letters.redrive import DeadLetterRedrive
from weir.broker.log.producer_state_manager import ProducerStateManager
from weir.broker.prepared.prepared_messages import PreparedMessages
from weir.broker.publish.producers import Producers
from weir.broker.publish.publisher import Publisher
from weir.broker.subscriptions.subscription import Subscription
from weir.broker.topics.delayed_messages import HeldInTopic, LazyHolding
from weir.broker.topics.topic_compaction import Compaction
from weir.broker.topics.topic_key_index import TopicKeyIndex
from weir.broker.topics.topic_stats import internal_stats
from weir.broker.topics.topic_subscriptions import Subscriptions
from weir.broker.topics.topic_writer import Trimming
from weir.model.batch import Batch
from weir.model.errors import SubscriptionBusyError
from weir.model.ids import LedgerId
from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.runtime.interfaces import Clock
from weir.stream.compaction import CompactedView
from weir.stream.holding.area import HoldingArea
from weir.stream.log import Stream
from weir.stream.retention import bytes_from


class TopicAdmin:
    """Fills `api.StoredTopic`. Stateless: delegates to the components of the topic."""

    def __init__(
        self,
        topic: Topic,
        stream: Stream,
        view: CompactedView,
        *,
        publisher: Publisher,
        producers: Producers,
        producer_state: ProducerStateManager,
        subscriptions: Subscriptions,
        members: GroupAssignments,
        compaction: Compaction,
        trimming: Trimming,
        clock: Clock,
        half: PreparedMessages,
        key_index: TopicKeyIndex,
    ) -> None:
        self.topic = topic
        self._stream = stream
        self._view = view
        self._publisher = publisher
        self._producers = producers
        self._producer_state = producer_state
        self._subscriptions = subscriptions
        self._members = members
        self._compaction = compaction
        self._trimming = trimming
        self._clock = clock
        self.half = half
        self._key_index = key_index

    # --- storage ----------------------------------------------------------------------------------------

    @property
    def deduplicates(self) -> bool:
        return bool(self._publisher.policies.deduplication)

    @property
    def size_bytes(self) -> int:
        return self._stream.size_bytes + self._view.size_bytes

    @property
    def log_bytes(self) -> int:
        return self._stream.size_bytes

    def bytes_from(self, offset: int) -> int:
        stream = self._stream
        return bytes_from(stream.chain, offset, stream.end_offset, stream.open_bytes)

    def ledger_range(self, ledger: int) -> tuple[int, int] | None:
        span = self._stream.chain.span_of(LedgerId(ledger))
        if span is None:
            return None
        return span.first_offset, self._stream.end_offset if span.end_offset is None else span.end_offset

    def internal_stats(self) -> InternalStats:
        return internal_stats(self._stream, self._publisher, self._subscriptions)

    # --- subscriptions ----------------------------------------------------------------------------------

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        return self._subscriptions.by_name

    def subscription(self, name: str) -> Subscription:
        return self._subscriptions.get(name)

    def members(self, subscription: str) -> Sequence[ConsumerStats]:
        """Members of the consumer group of this name to which the topic is assigned."""
        return self._members.of(self.topic.name, subscription)

    @property
    def groups(self) -> Sequence[str]:
        return list(self._members.on(self.topic.name))

    async def create_subscription(
        self, name: str, start: StartAt, *, properties: Mapping[str, str] | None = None
    ) -> Subscription:
        return await self._subscriptions.create(name, start, properties=properties)

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        if self.members(name) and not force:
            raise SubscriptionBusyError(f"{self.topic.name} is read by members of the group {name!r}")
        await self._subscriptions.delete(name, force=force)

    @property
    def dead_letters(self) -> DeadLetterRedrive:
        subscriptions = self._subscriptions
        return DeadLetterRedrive(
            self.topic.name,
            subscriptions,
            lambda: subscriptions.letters.of(QUEUE_SUBSCRIPTION),
            lambda: self.topic.alive,
            self._clock,
        )

    # --- messages ---------------------------------------------------------------------------------------

    @property
    def area(self) -> HoldingArea | None:
        """Stores delayed and half messages until they are due; None until the topic has its first one."""
        holding = self._publisher.holding
        area = holding.area if isinstance(holding, LazyHolding) else holding
        return area if isinstance(area, HoldingArea) else None

    @property
    def held_messages(self) -> int:
        """Approximate number of delayed messages."""
        return 0 if self.area is None else max(0, self.area.held_messages - self.half.counts_held.messages)

    @property
    def held(self) -> HeldMessages | None:
        area = self.area
        return None if area is None else HeldInTopic(area, self.half, self._producer_state.save_moves)

    async def find(self, key: bytes, limit: int) -> list[tuple[Batch, int]]:
        return await self._key_index.find(key, limit)

    async def terminate(self) -> Position:
        """Close all producers; an attempt to reconnect fails with the reason."""
        await self._stream.terminate()
        self._producers.close("the topic is terminated")
        return await self.topic.last_position()

    async def truncate(self) -> None:
        await self._stream.roll()
        end = self._stream.end_offset
        self._subscriptions.skip_all()
        await self._trimming.forget_before(end)

    async def delete_before(self, offset: int) -> None:
        """Wait for a running compaction first: it would restore deleted messages."""
        await self._compaction.ended()
        await self._view.forget_before(offset)
        await self._trimming.forget_before(offset)

    @property
    def compaction(self) -> CompactionStatus:
        return self._compaction.status

    def compact(self) -> None:
        self._compaction.start()
