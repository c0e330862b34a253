"""Lag of streams, functions and connectors that no worker runs: what their subscriptions have not read.

A worker reports its lag itself. What a dead worker reported last is no longer true, so the brokers that have the
topics are asked.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from msgspec import Struct

from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_TOPIC, subscription_of, topic_of
from weir.broker.api.broker import Owner
from weir.model.definitions import Connector, Function, SqlStream
from weir.model.errors import InvalidNameError, WeirError
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.rest.forwarding import CallTarget, PartCalls
from weir.rest.routes import Call, Route

_ONE = "/admin/weir/v1/unread/persistent/{tenant}/{namespace}/{topic}/{subscription}"
#: A listing does not wait for long for a broker that is away.
_PATIENCE_S = 1.0
_REFUSED = (401, 403, 404, 405)


class UnreadBody(Struct, rename="camel"):
    #: Messages that the subscription has not read; null if the topic has no such subscription.
    unread: int | None
    #: Messages that the topic has.
    stored: int


@dataclass(frozen=True, slots=True)
class Reader:
    """The subscription of a worker. `from_start`: it begins with the oldest message if it is new."""

    subscription: str
    topics: Sequence[TopicName]
    from_start: bool


def reader_of_stream(stream: SqlStream) -> Reader:
    return Reader(stream.subscription, stream.sources, stream.options.get("start") != "latest")


def reader_of_function(function: Function) -> Reader:
    return Reader(function.subscription, function.inputs, function.options.get("start") != "latest")


def reader_of_connector(connector: Connector) -> Reader | None:
    """None of a source: it reads another system."""
    try:
        said = json.loads(connector.config)
        topics = tuple(map(TopicName.parse, said.get("topics") or [said["topic"]]))
        return Reader(connector.subscription, topics, said["sink"].get("start", "earliest") != "latest")
    except (ValueError, KeyError, TypeError, AttributeError, InvalidNameError):
        return None


class Unread:
    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._route = Route(
            "GET",
            _ONE,
            "How much a subscription has not read; the topic need not have it.",
            self._one,
            answer=UnreadBody,
            refusals=ABOUT_TOPIC,
            tag="subscriptions",
        )

    def routes(self) -> list[Route]:
        return [self._route]

    async def lag(self, call: Call, reader: Reader | None) -> int | None:
        """Messages that wait for it; None if that cannot be known now."""
        if reader is None or not reader.topics:
            return None
        try:
            parts = [part for topic in reader.topics for part in await self._context.names(topic)]
            found = await PartCalls(self._context.clock, self._context.ask_peer, _PATIENCE_S).each(
                call, [self._target(part, reader.subscription) for part in parts], route=self._route, fine=_REFUSED
            )
        except WeirError:
            return None
        return sum(
            (one.stored if reader.from_start else 0) if one.unread is None else one.unread
            for one in found.values()
        )

    def _target(self, topic: TopicName, subscription: str) -> CallTarget[TopicName]:
        values = {
            "tenant": topic.namespace.tenant,
            "namespace": topic.namespace.name,
            "topic": topic.local_with_partition,
            "subscription": subscription,
        }
        return CallTarget(topic, values, partial(self._owner, topic))

    def _owner(self, topic: TopicName) -> Owner:
        return self._context.broker.owner_now(topic)

    async def _one(self, call: Call) -> UnreadBody:
        topic, wanted = topic_of(call.path), subscription_of(call.path)
        self._context.authoriser.check(call.role, Action.CONSUME, topic)
        stats = (await self._context.load(topic)).stats()
        found = [one.backlog for one in stats.subscriptions if one.name == wanted and one.placed]
        return UnreadBody(found[0] if found else None, stats.end_offset - stats.start_offset)
