"""Upkeep of topics that no broker has loaded: retention, expiry and backlog quotas.

What is old is told from the metadata alone; only a topic that has something to lose is loaded, looked after, and
let go again. So a broker with many idle topics keeps them out of its memory. A topic that needs its timers after
that, since part of its backlog expires later, stays loaded until they have run.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from weir.broker.context import BrokerContext
from weir.broker.ports import Registry
from weir.broker.topic.opening import AnyTopic
from weir.broker.topic.overviews import Overviews
from weir.broker.topic.topic import BrokerTopic
from weir.broker.upkeep.topic import maintain
from weir.meta import keys
from weir.model.errors import InvalidNameError, WeirError
from weir.model.ids import LedgerId
from weir.model.policies import BacklogAction, BacklogQuota, LogCompaction, Policies, Retention
from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.model.registry import SYSTEM_NAMESPACE
from weir.model.stream import Chain
from weir.model.topics import Domain, TopicName
from weir.stream.retention import trim_point
from weir.wire.stream import decode_chain

log = logging.getLogger(__name__)

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
