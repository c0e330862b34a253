"""Overviews of many topics at once, for lists: from memory where topics are loaded, else from the metadata."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_NAMESPACE, BAD_NAME, after_of, namespace_of
from weir.admin.topic_stats import SUBSCRIPTION_TYPES
from weir.broker.api.stats import GENERATION, ConsumerStats, SubscriptionStats, TopicStats
from weir.model.errors import NotOwnerError, TopicClosedError, WeirError
from weir.model.registry import TopicRecord
from weir.model.topics import Domain, TopicName
from weir.rest.routes import Call, Query, Route
from weir.wire.peer.calls import AdminCall

log = logging.getLogger(__name__)

_OF_NAMESPACE = "/admin/weir/v1/overviews/{tenant}/{namespace}"
_OF_TOPICS = "/admin/weir/v1/overviews"
_TAG = "topics"
#: Topics on a page, and what one broker asks of another at a time.
_PAGE = 500
#: Topics that are loaded at the same time, where there is no overview of them.
_AT_ONCE = 16
#: A topic may be on its way to another broker: so often, and so far apart, its broker is asked.
_ATTEMPTS, _PAUSE_S = 5, 0.2
#: Consumers' properties that lists show.
_SHOWN = (GENERATION, "weir.client_id")

_Limit = Annotated[int, Meta(ge=1, le=1000)]
_Names = Annotated[list[Annotated[str, Meta(max_length=4_000)]], Meta(max_length=_PAGE)]


class ConsumerOverview(Struct, omit_defaults=True):
    consumerName: str
    address: str = ""
    clientVersion: str = ""
    metadata: dict[str, str] = field(default_factory=dict)


class SubscriptionOverviewBody(Struct, omit_defaults=True):
    """`position`: the offset of the next message; None of a group that has committed nothing."""

    type: str | None = None
    isDurable: bool = True
    msgBacklog: int = 0
    unackedMessages: int = 0
    position: int | None = None
    consumers: list[ConsumerOverview] = field(default_factory=list)


class OverviewBody(Struct, omit_defaults=True):
    """A topic; of a partitioned one the sums, and each partition."""

    messages: int = 0
    storageSize: int = 0
    msgRateIn: float = 0.0
    msgRateOut: float = 0.0
    producers: int = 0
    startOffset: int = 0
    endOffset: int = 0
    subscriptions: dict[str, SubscriptionOverviewBody] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    partitions: dict[str, "OverviewBody"] = field(default_factory=dict)


class OverviewsPage(Struct):
    """`next`: where the next page begins (`after`); "" on the last one."""

    topics: dict[str, OverviewBody]
    next: str = ""


class TopicsBody(Struct):
    topics: _Names


class Overviews:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                _OF_NAMESPACE,
                "Overviews of the persistent topics of a namespace, with their subscriptions; loads no topic.",
                self._page,
                answer=OverviewsPage,
                query=(
                    Query("limit", _Limit, "topics on a page", _PAGE),
                    Query("after", str, "only topics that come after this one"),
                ),
                refusals=ABOUT_NAMESPACE,
                tag=_TAG,
            ),
            Route(
                "POST",
                _OF_TOPICS,
                "Overviews of those of these topics, or partitions, that this broker knows.",
                self._named,
                body=TopicsBody,
                answer=dict[str, OverviewBody],
                refusals=BAD_NAME,
                tag=_TAG,
            ),
        ]

    async def _page(self, call: Call) -> OverviewsPage:
        namespace, registry = namespace_of(call.path), self._context.registry
        self._context.authoriser.check_lookup(call.role, namespace)
        registry.namespaces.get(namespace)
        records: list[TopicRecord] = []
        more = False
        async for record in registry.topics.of(namespace, Domain.PERSISTENT, after=after_of(call.query)):
            if len(records) == call.query["limit"]:
                more = True
                break
            records.append(record)
        parts = {record.name: [] if record.deleting else record.parts() for record in records}
        found = await self.of(call.role, [part for some in parts.values() for part in some])
        page: dict[str, OverviewBody] = {}
        for base, some in parts.items():
            there = {str(part): found[part] for part in some if part in found}
            if there:
                page[str(base)] = found[base] if base in found else together(there)
        return OverviewsPage(page, str(records[-1].name) if more else "")

    async def _named(self, call: Call) -> dict[str, OverviewBody]:
        found, _ = await self._here(call.role, [TopicName.parse(name) for name in call.body.topics])
        return {str(name): body for name, body in found.items()}

    # --- many topics --------------------------------------------------------------------------------------------

    async def of(self, role: str, names: Sequence[TopicName]) -> dict[TopicName, OverviewBody]:
        """Of those that the role may know of, and whose brokers answer."""
        found, left = await self._here(role, names)
        for attempt in range(_ATTEMPTS if left else 0):
            if attempt:
                await self._context.clock.sleep(_PAUSE_S)
            found |= await self._elsewhere(role, left)
            left = [name for name in left if name not in found]
            if not left:
                break
        return found

    async def _here(
        self, role: str, names: Sequence[TopicName]
    ) -> tuple[dict[TopicName, OverviewBody], list[TopicName]]:
        """Those that this broker knows, and those that other brokers have."""
        found: dict[TopicName, OverviewBody] = {}
        elsewhere: list[TopicName] = []
        waiting = iter(names)
        authoriser = self._context.authoriser
        may_monitor = authoriser.may_monitor(role)

        async def look() -> None:
            for name in waiting:
                await self._context.clock.sleep(0)
                try:
                    if may_monitor or authoriser.may_look(role, name):
                        found[name] = _body(await self._context.broker.stats(name))
                except (NotOwnerError, TopicClosedError):
                    elsewhere.append(name)
                except WeirError as failed:
                    log.info("%s is not in a list: %s", name, failed)

        await asyncio.gather(*(look() for _ in range(_AT_ONCE)))
        return found, elsewhere

    async def _elsewhere(self, role: str, names: Iterable[TopicName]) -> dict[TopicName, OverviewBody]:
        by_broker: dict[str, list[TopicName]] = {}
        here: list[TopicName] = []
        for name in names:
            owner = self._context.broker.owner_now(name)
            (here if owner.here else by_broker.setdefault(owner.broker_id, [])).append(name)
        found, _ = await self._here(role, here)
        asked = [
            (broker_id, some[first : first + _PAGE])
            for broker_id, some in by_broker.items()
            for first in range(0, len(some), _PAGE)
        ]
        for answer in await asyncio.gather(*(self._ask(broker_id, role, some) for broker_id, some in asked)):
            found |= answer
        return found

    async def _ask(self, broker_id: str, role: str, names: Sequence[TopicName]) -> dict[TopicName, OverviewBody]:
        body = msgspec.json.encode(TopicsBody([str(name) for name in names]))
        try:
            answer = await self._context.ask_peer(broker_id, AdminCall(role, "POST", _OF_TOPICS, body=body))
        except WeirError as silent:
            log.info("broker %s does not answer POST %s: %s", broker_id, _OF_TOPICS, silent)
            return {}
        if answer.status >= 300:
            return {}
        found = msgspec.json.decode(answer.body, type=dict[str, OverviewBody])
        return {name: found[str(name)] for name in names if str(name) in found}


def _body(stats: TopicStats) -> OverviewBody:
    return OverviewBody(
        messages=stats.end_offset - stats.start_offset,
        storageSize=stats.storage_bytes,
        msgRateIn=stats.published.messages_per_s,
        msgRateOut=stats.delivered.messages_per_s,
        producers=len(stats.producers),
        startOffset=stats.start_offset,
        endOffset=stats.end_offset,
        subscriptions={one.name: _subscription(one) for one in stats.subscriptions},
        unreadable=list(stats.unreadable),
    )


def _subscription(stats: SubscriptionStats) -> SubscriptionOverviewBody:
    return SubscriptionOverviewBody(
        type=None if stats.type is None else SUBSCRIPTION_TYPES[stats.type],
        isDurable=stats.durable,
        msgBacklog=stats.backlog,
        unackedMessages=stats.unacked,
        position=stats.position,
        consumers=[_consumer(one) for one in stats.consumers],
    )


def _consumer(stats: ConsumerStats) -> ConsumerOverview:
    shown = {key: stats.properties[key] for key in _SHOWN if key in stats.properties}
    return ConsumerOverview(stats.name, stats.address, stats.client_version, shown)


def together(parts: Mapping[str, OverviewBody]) -> OverviewBody:
    """All partitions of a topic."""
    whole = OverviewBody(partitions=dict(parts))
    for part in parts.values():
        whole.messages += part.messages
        whole.storageSize += part.storageSize
        whole.msgRateIn += part.msgRateIn
        whole.msgRateOut += part.msgRateOut
        whole.producers += part.producers
        for name, one in part.subscriptions.items():
            known = whole.subscriptions.get(name)
            whole.subscriptions[name] = _added(known, one)
    return whole


def _added(known: SubscriptionOverviewBody | None, one: SubscriptionOverviewBody) -> SubscriptionOverviewBody:
    if known is None:
        known = SubscriptionOverviewBody(isDurable=one.isDurable)
    members = {each.consumerName: None for each in known.consumers if GENERATION in each.metadata}
    return SubscriptionOverviewBody(
        type=known.type or one.type,
        isDurable=known.isDurable,
        msgBacklog=known.msgBacklog + one.msgBacklog,
        unackedMessages=known.unackedMessages + one.unackedMessages,
        consumers=[*known.consumers, *(each for each in one.consumers if each.consumerName not in members)],
    )
