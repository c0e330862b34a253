"""Background tasks of a broker: upkeep of loaded and idle topics, unloading, interrupted deletions, revoked
grants.

Idle topics: the broker finds expired data from the metadata alone, and loads a topic only to delete some, so many
idle topics do not fill its memory. A topic that needs timers after that, because part of its backlog expires
later, stays loaded until they have run. Unloading: a topic without clients, timers and background work is unloaded
after some time; the next use loads it again.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from weir.broker.api.security import Guard
from weir.broker.api.stats import CompactionStatus
from weir.broker.context import BrokerContext
from weir.broker.ports import Registry
from weir.broker.subscriptions.subscription import Subscription
from weir.broker.topics.non_persistent import PassingSubscription
from weir.broker.topics.topic import AnyTopic, BrokerTopic
from weir.broker.topics.topic_overviews import Overviews
from weir.broker.upkeep.topic_upkeep import maintain
from weir.meta import keys
from weir.model.errors import InvalidNameError, NotAllowedError, NotAuthorisedError, WeirError
from weir.model.ids import LedgerId
from weir.model.policies import BacklogAction, BacklogQuota, LogCompaction, Policies, Retention
from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.model.registry import SYSTEM_NAMESPACE, Action
from weir.model.stream import Chain
from weir.model.topics import Domain, TopicName
from weir.runtime.interfaces import Clock
from weir.stream.retention import trim_point
from weir.wire.stream import decode_chain

log = logging.getLogger(__name__)

#: Topics per turn of the event loop.
_MAINTENANCE_AT_ONCE = 20


class Maintenance:
    def __init__(self, context: BrokerContext, topics: Callable[[], Sequence[AnyTopic]]) -> None:
        self._clock = context.runtime.clock
        self._interval_s = context.settings.maintenance_s
        self._topics = topics

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self._clock.sleep(self._interval_s)
            await self.round()

    async def round(self) -> None:
        """Run the upkeep of every loaded topic once."""
        for number, topic in enumerate(self._topics()):
            if not isinstance(topic, BrokerTopic) or not topic.alive:
                continue
            try:
                await maintain(topic, self._clock.wall_ms())
            except WeirError as failed:
                log.warning("upkeep of %s failed (repeated in the next round): %s", topic.name, failed)
            if number % _MAINTENANCE_AT_ONCE == _MAINTENANCE_AT_ONCE - 1:
                await self._clock.sleep(0)


#: Streams checked per turn of the event loop.
_AT_ONCE = 50
#: Streams per page of metadata.
_PAGE = 500


class IdleTopics:
    """Upkeep of topics that no broker has loaded. `is_idle`: whether this broker owns the topic and has not loaded
    it. `borrow` loads a topic, and afterwards unloads it unless a client needs it."""

    def __init__(
        self,
        context: BrokerContext,
        registry: Registry,
        overviews: Overviews,
        is_idle: Callable[[TopicName], bool],
        borrow: Callable[[TopicName], AbstractAsyncContextManager[AnyTopic]],
    ) -> None:
        self._context = context
        self._clock = context.runtime.clock
        self._registry = registry
        self._overviews = overviews
        self._is_idle = is_idle
        self._borrow = borrow
        #: Topics whose last upkeep deleted nothing, because of an unacknowledged backlog, say, with their oldest
        #: ledger.
        self._held_back: dict[TopicName, LedgerId] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self._clock.sleep(self._context.settings.idle_s)
            try:
                await self.round()
            except WeirError as failed:
                log.warning("upkeep of idle topics failed (repeated in the next round): %s", failed)

    async def round(self) -> None:
        """Check every stream of the cluster once."""
        held_back: dict[TopicName, LedgerId] = {}
        after = ""
        while True:
            page = await self._context.streams.meta.page(keys.STREAMS, after=after, limit=_PAGE)
            for number, (key, value, _) in enumerate(page.items, 1):
                name = _topic_of(key)
                if name is not None and self._is_idle(name):
                    chain = decode_chain(value)
                    if await self._is_to_move(name, chain) or await self._expires(name, chain):
                        await self._maintain(name)
                    elif chain.spans and await self._has_old(name, chain):
                        oldest = held_back[name] = chain.spans[0].ledger_id
                        if self._held_back.get(name) != oldest:
                            await self._maintain(name)
                if not number % _AT_ONCE:
                    await self._clock.sleep(0)
            if len(page.items) < _PAGE:
                break
            after = page.items[-1].key
        self._held_back = held_back

    async def _has_old(self, name: TopicName, chain: Chain) -> bool:
        """Whether retention would delete the oldest ledger, unless a subscription needs it. Applies only to a
        retention by time or size: otherwise the next acknowledgement triggers the deletion."""
        policies = await self._registry.look_policies(name)
        cleanup = (policies.log_compaction or LogCompaction()).cleanup
        if not chain.spans or not cleanup.deletes:
            return False
        tiered = None if cleanup.compacts else await self._context.tiering.look(name)
        retention = (policies.retention or Retention()) if tiered is None else tiered.retention
        now_ms = self._clock.wall_ms()
        expired = 0 < retention.time_ms <= now_ms - chain.spans[0].last_ms
        by_size = Retention.exactly(-1, retention.size_bytes)
        over = retention.size_bytes > 0 and trim_point(chain, chain.end_offset, by_size, now_ms, 0)
        return expired or bool(over and over > chain.start_offset)

    async def _is_to_move(self, name: TopicName, chain: Chain) -> bool:
        """Whether a ledger is due to move to the lake."""
        staying = next((span for span in chain.spans if span.closed and not span.in_lake), None)
        rules = None if staying is None else await self._context.tiering.look(name)
        return (
            rules is not None and staying is not None and self._clock.wall_ms() - staying.last_ms >= rules.after_ms
        )

    async def _expires(self, name: TopicName, chain: Chain) -> bool:
        """Whether a backlog is older than a policy allows, or an unused subscription may expire."""
        if not chain.spans:
            return False
        policies = await self._registry.look_policies(name)
        limit_ms = _backlog_limit_ms(policies)
        if limit_ms is None and not policies.subscription_expiry_min:
            return False
        stats = await self._overviews.look(name)
        if stats is None:  # its last broker stored no overview
            return True
        if policies.subscription_expiry_min and any(one.name != QUEUE_SUBSCRIPTION for one in stats.subscriptions):
            return True
        starts = [one.mark_delete + 1 for one in stats.subscriptions if one.backlog]
        if limit_ms is None or not starts:
            return False
        span = next((span for span in chain.spans if (span.end_offset or 0) > min(starts)), chain.spans[-1])
        return self._clock.wall_ms() - span.first_ms >= limit_ms

    async def _maintain(self, name: TopicName) -> None:
        try:
            async with self._borrow(name) as topic:
                if isinstance(topic, BrokerTopic):
                    await maintain(topic, self._clock.wall_ms())
                    await topic.tiering.done()
        except WeirError as failed:  # another broker owns it, say
            log.info("upkeep of idle topic %s failed (repeated in the next round): %s", name, failed)


def _backlog_limit_ms(policies: Policies) -> int | None:
    """The age at which messages of a backlog expire; None for never."""
    quota = policies.backlog_quota or BacklogQuota()
    limits = [policies.message_ttl_s * 1000] if policies.message_ttl_s else []
    if quota.seconds >= 0 and quota.action is BacklogAction.EVICT_OLDEST:
        limits.append(quota.seconds * 1000)
    return min(limits, default=None)


def _topic_of(key: str) -> TopicName | None:
    try:
        name = TopicName.parse(f"{Domain.PERSISTENT.value}://{key.removeprefix(keys.STREAMS)}")
    except InvalidNameError:
        return None
    return None if name.namespace == SYSTEM_NAMESPACE else name


_EVERY_S = 60.0


class Leftovers:
    """Finishes interrupted deletions. `delete` finishes one, or waits for a deletion that runs already."""

    def __init__(self, clock: Clock, registry: Registry, delete: Callable[[TopicName], Awaitable[None]]) -> None:
        self._clock = clock
        self._registry = registry
        self._delete = delete

    async def run(self) -> None:
        """Run until cancelled; the first round starts at once."""
        while True:
            for name in await self._doomed():
                try:
                    await self._delete(name)
                    log.info("interrupted deletion of %s finished", name)
                except WeirError as failed:  # another broker deletes it, say
                    log.info("deletion of %s failed (repeated in the next round): %s", name, failed)
            await self._clock.sleep(_EVERY_S)

    async def _doomed(self) -> list[TopicName]:
        try:
            return await self._registry.doomed_topics()
        except WeirError as failed:
            log.info("search for interrupted deletions failed (repeated in the next round): %s", failed)
            return []


#: Topics checked per turn of the event loop.
_TOPICS_PER_TURN = 200


class GrantRevocation:
    """Waits for changes of permissions, and checks all connected producers and consumers again."""

    def __init__(self, guard: Guard, clock: Clock, topics: Callable[[], list[AnyTopic]]) -> None:
        self._guard = guard
        self._clock = clock
        self._topics = topics

    async def run(self) -> None:
        seen = self._guard.revision
        while True:
            seen = await self._guard.change(seen)
            for number, topic in enumerate(self._topics(), 1):
                self.check(topic)
                if not number % _TOPICS_PER_TURN:
                    await self._clock.sleep(0)

    def check(self, topic: AnyTopic) -> None:
        """Disconnect producers and consumers without permission. When they reconnect, they receive the error."""
        for producer in list(topic.producers):
            if denied := self._denied(producer.request.role, topic.name, Action.PRODUCE):
                topic.producers.remove(producer, denied.what)
        subscriptions: list[Subscription | PassingSubscription] = [*topic.subscriptions.values()]
        for subscription in subscriptions:
            for consumer in list(subscription.consumers):
                if denied := self._denied(consumer.request.role, topic.name, Action.CONSUME, subscription.name):
                    consumer.denied = denied
                    subscription.expel(consumer, denied.what)

    def _denied(
        self, role: str, topic: TopicName, action: Action, subscription: str | None = None
    ) -> NotAuthorisedError | None:
        try:
            self._guard.check(role, topic, action, subscription=subscription)
        except NotAuthorisedError as refused:
            log.info("%s", refused.what)
            return refused
        return None


def is_needed(topic: AnyTopic) -> bool:
    """Whether the topic must stay loaded."""
    try:
        topic.check_unused()
    except NotAllowedError:
        return True
    if not isinstance(topic, BrokerTopic):
        return False
    return not topic.alive or topic.has_watchers or _has_unfinished(topic) or _has_timers(topic)


def _has_unfinished(topic: BrokerTopic) -> bool:
    """Whether the topic has pending work, which an unload would lose or the next load would repeat."""
    stream = topic.stream
    return bool(
        stream.unwritten
        or stream.in_flight
        or topic.publisher.failed
        or topic.producer_state.index.any_open
        or topic.producer_state.unmoved_from < stream.end_offset
        or topic.half.there
        or topic.letters.waiting
        or topic.compaction.status is CompactionStatus.RUNNING
        or topic.key_index.working
        or topic.tiering.working
    )


def _has_timers(topic: BrokerTopic) -> bool:
    """Whether a timer is pending for the topic or its messages."""
    policies, rules = topic.policies, topic.queue_rules
    subscriptions = [one for one in topic.subscriptions.values() if one.durable]
    if topic.stored.held_messages or rules.acts_by_itself:
        return True
    if any(one.name != QUEUE_SUBSCRIPTION for one in subscriptions) and policies.subscription_expiry_min:
        return True
    if not any(one.backlog for one in subscriptions):
        return _is_compacted_later(topic)
    hooks = topic.queue_side.hooks
    quota = policies.backlog_quota or BacklogQuota()
    return bool(
        policies.message_ttl_s or quota.seconds >= 0 or (hooks is not None and hooks.waits)
    ) or _is_compacted_later(topic)


def _is_compacted_later(topic: BrokerTopic) -> bool:
    """Whether the topic has messages for a later compaction."""
    policy = topic.policies.log_compaction or LogCompaction()
    if not policy.cleanup.compacts:
        return False
    tombstones = topic.view.compacted.tombstone_end_ms(policy.tombstone_ms) is not None
    return tombstones or topic.compaction.begun_at < topic.stream.end_offset > topic.view.horizon


#: Rounds within the idle time that precedes an unload.
_ROUNDS = 4
#: Topics checked per turn of the event loop.
_CHECKED_AT_ONCE = 256


class _Seen(NamedTuple):
    """State of a topic in a round, and since when it has not changed."""

    topic: AnyTopic
    uses: int
    activity: tuple[int, ...]
    since_s: float


class UnusedTopics:
    """Unloads unused topics. `after_s`: idle time before an unload; 0 disables it."""

    def __init__(
        self,
        clock: Clock,
        after_s: float,
        loaded: Callable[[], Sequence[AnyTopic]],
        unload: Callable[[TopicName, str], Awaitable[None]],
    ) -> None:
        self._clock = clock
        self._after_s = after_s
        self._loaded = loaded
        self._unload = unload
        #: Number of requests for each loaded topic.
        self._uses: dict[TopicName, int] = {}
        self._seen: dict[TopicName, _Seen] = {}

    def used(self, name: TopicName) -> int:
        """Count a request for the topic; returns the number of requests, including this one."""
        uses = self._uses[name] = self._uses.get(name, 0) + 1
        return uses

    def forget(self, name: TopicName) -> None:
        """Remove the counts of an unloaded topic."""
        self._uses.pop(name, None)
        self._seen.pop(name, None)

    async def release(self, topic: AnyTopic, uses: int) -> None:
        """Unload a topic that the broker loaded for itself, unless a client requested it since."""
        if self._uses.get(topic.name) == uses and not is_needed(topic):
            await self._unload(topic.name, "no client uses it")

    async def run(self) -> None:
        """Run until cancelled."""
        while self._after_s > 0:
            await self._clock.sleep(self._after_s / _ROUNDS)
            await self.round()

    async def round(self) -> None:
        """Check every loaded topic once, and unload unused ones."""
        unloaded = 0
        for number, topic in enumerate(self._loaded(), 1):
            if self._is_due(topic):
                unloaded += 1
                try:
                    await self._unload(topic.name, f"unused for {self._after_s:g} s")
                except WeirError as failed:
                    log.info("unload of %s failed: %s", topic.name, failed)
            if not number % _CHECKED_AT_ONCE:
                await self._clock.sleep(0)
        if unloaded:
            log.info("%d unused topics unloaded", unloaded)

    def _is_due(self, topic: AnyTopic) -> bool:
        name, now_s = topic.name, self._clock.monotonic()
        uses, activity = self._uses.get(name, 0), _activity_of(topic)
        seen = self._seen.get(name)
        if is_needed(topic) or seen is None or seen[:3] != (topic, uses, activity):
            self._seen[name] = _Seen(topic, uses, activity, now_s)
            return False
        return now_s - seen.since_s >= self._after_s


def _activity_of(topic: AnyTopic) -> tuple[int, ...]:
    """Numbers that change when messages are stored, read or acknowledged."""
    if not isinstance(topic, BrokerTopic):
        return topic.traffic()
    cursors = (one.cursor.mark_delete + one.cursor.holes for one in topic.subscriptions.values())
    return (topic.stream.end_offset, *topic.traffic(), *cursors)
