"""Upkeep of topics that no broker has loaded: retention, expiry and backlog quotas.

What is old is told from the metadata alone; only a topic that has something to lose is loaded, looked after, and
let go again. So a broker with many idle topics keeps them out of its memory. A topic that needs its timers after
that, since part of its backlog expires later, stays loaded until they have run.

Unloads topics that were not used for some time; the next use loads them again.

Whether a topic may be unloaded: no client uses it, and no timer or background work of its own needs it.

What was allowed and is no longer: producers and consumers of a role that lost its grant are sent away.

Deletions that were cut short, by a crash say, are ended without anybody asking for the topic.

One task per broker that looks after its topics in turn.
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

#: Topics looked after before everyone else gets a turn.
_MAINTENANCE_AT_ONCE = 20


class Maintenance:
    def __init__(self, context: BrokerContext, topics: Callable[[], Sequence[AnyTopic]]) -> None:
        self._clock = context.runtime.clock
        self._interval_s = context.settings.maintenance_s
        self._topics = topics

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._clock.sleep(self._interval_s)
            await self.round()

    async def round(self) -> None:
        """Look after every loaded topic once."""
        for number, topic in enumerate(self._topics()):
            if not isinstance(topic, BrokerTopic) or not topic.alive:
                continue
            try:
                await maintain(topic, self._clock.wall_ms())
            except WeirError as failed:
                log.warning("%s could not be looked after this time: %s", topic.name, failed)
            if number % _MAINTENANCE_AT_ONCE == _MAINTENANCE_AT_ONCE - 1:
                await self._clock.sleep(0)


#: Streams looked at before others get a turn.
_AT_ONCE = 50
#: Streams whose metadata is in memory at once.
_PAGE = 500


class IdleTopics:
    """`is_idle` and `borrow` are the broker's. `is_idle`: whether this broker is to serve the topic, and has not
    loaded it. `borrow` loads a topic, and unloads it afterwards if it is not needed."""

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
        #: The oldest ledger of those that were looked after and lost nothing: a subscription holds it back, say.
        self._held_back: dict[TopicName, LedgerId] = {}

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._clock.sleep(self._context.settings.idle_s)
            try:
                await self.round()
            except WeirError as failed:
                log.warning("idle topics could not be looked after this time: %s", failed)

    async def round(self) -> None:
        """Look at every stream that there is once."""
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
        """Whether its oldest ledger would go, if nobody holds it back. Only where somebody said for how long or
        how much: what goes once it is acknowledged goes when its subscribers come."""
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
        """Whether a ledger of it may have to go to the lake."""
        staying = next((span for span in chain.spans if span.closed and not span.in_lake), None)
        rules = None if staying is None else await self._context.tiering.look(name)
        return (
            rules is not None and staying is not None and self._clock.wall_ms() - staying.last_ms >= rules.after_ms
        )

    async def _expires(self, name: TopicName, chain: Chain) -> bool:
        """Whether part of a backlog is older than a policy allows, or a subscription expires unless it is used."""
        if not chain.spans:
            return False
        policies = await self._registry.look_policies(name)
        limit_ms = _backlog_limit_ms(policies)
        if limit_ms is None and not policies.subscription_expiry_min:
            return False
        stats = await self._overviews.look(name)
        if stats is None:  # its broker ended without an overview
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
        except WeirError as failed:  # another broker has it, say
            log.info("%s, which is idle, was not looked after: %s", name, failed)


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
    """Looks for topics that are marked as being deleted. `delete` ends one, or waits for whoever is at it."""

    def __init__(self, clock: Clock, registry: Registry, delete: Callable[[TopicName], Awaitable[None]]) -> None:
        self._clock = clock
        self._registry = registry
        self._delete = delete

    async def run(self) -> None:
        """For ever; at the start, too."""
        while True:
            for name in await self._doomed():
                try:
                    await self._delete(name)
                    log.info("%s, whose deletion was cut short, is gone", name)
                except WeirError as failed:  # another broker is at it, say
                    log.info("the deletion of %s is not ended yet: %s", name, failed)
            await self._clock.sleep(_EVERY_S)

    async def _doomed(self) -> list[TopicName]:
        try:
            return await self._registry.doomed_topics()
        except WeirError as failed:
            log.info("topics whose deletion was cut short cannot be looked for: %s", failed)
            return []


#: So many topics, then it is the others' turn.
_TOPICS_PER_TURN = 200


class Revoking:
    """Waits for changes of what roles may do, and asks anew for everyone who is connected."""

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
        """Send everyone away who may not be there. They come back at once, and are told why not."""
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
    """Whether something that was begun has not ended: it would be lost, or begun again by the next load."""
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
    """Whether something happens to its messages, or to itself, when a time has come."""
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
    """Whether there are messages that a compaction, whose time has not come, is to look at."""
    policy = topic.policies.log_compaction or LogCompaction()
    if not policy.cleanup.compacts:
        return False
    tombstones = topic.view.compacted.tombstone_end_ms(policy.tombstone_ms) is not None
    return tombstones or topic.compaction.begun_at < topic.stream.end_offset > topic.view.horizon


#: Rounds within the time after which a topic is unloaded.
_ROUNDS = 4
#: Topics that are checked, and topics that are unloaded, before others get a turn.
_CHECKED_AT_ONCE = 256


class _Seen(NamedTuple):
    """A topic as one round saw it, and when it was seen so first."""

    topic: AnyTopic
    uses: int
    activity: tuple[int, ...]
    since_s: float


class UnusedTopics:
    """`loaded` and `unload` are the broker's. `after_s`: 0 for never."""

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
        #: How often each loaded topic was asked for.
        self._uses: dict[TopicName, int] = {}
        self._seen: dict[TopicName, _Seen] = {}

    def used(self, name: TopicName) -> int:
        """Note that a caller asks for the topic; answers how often that was, this time included."""
        uses = self._uses[name] = self._uses.get(name, 0) + 1
        return uses

    def forget(self, name: TopicName) -> None:
        """The topic is not loaded any more."""
        self._uses.pop(name, None)
        self._seen.pop(name, None)

    async def release(self, topic: AnyTopic, uses: int) -> None:
        """Unload a topic that the broker loaded for itself, unless it was asked for since."""
        if self._uses.get(topic.name) == uses and not is_needed(topic):
            await self._unload(topic.name, "no client uses it")

    async def run(self) -> None:
        """For ever."""
        while self._after_s > 0:
            await self._clock.sleep(self._after_s / _ROUNDS)
            await self.round()

    async def round(self) -> None:
        """Look at every loaded topic once, and unload those whose time has come."""
        unloaded = 0
        for number, topic in enumerate(self._loaded(), 1):
            if self._is_due(topic):
                unloaded += 1
                try:
                    await self._unload(topic.name, f"it was not used for {self._after_s:g} s")
                except WeirError as failed:
                    log.info("%s was not unloaded: %s", topic.name, failed)
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
