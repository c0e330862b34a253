"""Base of the management API: broker components, permission checks, calls to other brokers, and message counters.

Counters have the format of RabbitMQ's `message_stats`: totals, and rates in `*_details`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec

from weir.admin.context import AdminContext
from weir.broker.api.connections import Connections
from weir.broker.api.queues import Exchanges, NamespaceExchanges, NamespaceQueues, Queues
from weir.broker.api.security import Scope
from weir.broker.api.stats import TopicStats
from weir.broker.api.topics import Topic
from weir.gateway.amqp.management.errors import API, ManagementError, not_found
from weir.gateway.amqp.management.listing import Items, is_true
from weir.model.errors import InvalidNameError, NotAuthorisedError, WeirError
from weir.model.queues import QUEUE_SUBSCRIPTION, namespace_of_vhost, topic_of_queue, vhost_of
from weir.model.registry import Action
from weir.model.topics import NamespaceName, TopicName
from weir.rest.routes import Call, Query, Route
from weir.wire.peer.calls import AdminCall

log = logging.getLogger(__name__)

#: The RabbitMQ version that the API reports; the AMQP gateway reports the same.
VERSION = "3.13.7"
#: An extension of Weir: a broker sets it to collect the lists of other brokers.
HERE = Query("here", str, "true: only items of this broker")
#: The header with the reason for closing a connection.
REASON = "x-reason"
#: The name of the default exchange in paths.
DEFAULT_IN_PATHS = "amq.default"

_ABOUT = {401: "not authenticated or not authorised", 404: "not found", 409: "changed at the same time", 412: "no"}


@dataclass(frozen=True, slots=True)
class Management:
    """The components behind the API, and the checks that its routes share."""

    admin: AdminContext
    exchanges: Exchanges
    queues: Queues
    connections: Connections

    @property
    def node(self) -> str:
        return node_name(self.admin.broker_id)

    # --- permissions --------------------------------------------------------------------------------------------

    def check_manager(self, role: str) -> None:
        """ManagementError for users without any tag that allows the management API. Roles of tokens are no users:
        their grants decide."""
        user = self.admin.registry.users.find(role)
        if user is not None and not user.manages and not self.admin.authoriser.is_superuser(role):
            raise ManagementError(401, "Not management user")

    def check_superuser(self, role: str) -> None:
        if not self.admin.authoriser.is_superuser(role):
            raise ManagementError(401, "Not administrator user")

    def check_monitor(self, role: str) -> None:
        if not self.admin.authoriser.may_monitor(role):
            raise ManagementError(401, "Not monitor user")

    def check_admin(self, role: str, namespace: NamespaceName) -> None:
        if not self.admin.authoriser.may_administer(role, namespace):
            raise ManagementError(401, "Not administrator user")

    def check_policies(self, role: str, namespace: NamespaceName) -> None:
        if not self.admin.authoriser.may_set_policies(role, namespace):
            raise ManagementError(401, "User not authorised to access object")

    def check(self, role: str, action: Action, namespace: NamespaceName, queue: str) -> None:
        """NotAuthorisedError unless the role may do this with a queue or an exchange."""
        self.admin.authoriser.check(role, action, _scope(namespace, queue))

    def check_configure(self, role: str, namespace: NamespaceName, queue: str) -> None:
        self.admin.authoriser.check_configure(role, _scope(namespace, queue))

    def sees(self, role: str, namespace: NamespaceName) -> bool:
        return self.admin.authoriser.may_monitor(role) or self.admin.authoriser.may_look(role, namespace)

    def check_sees(self, role: str, namespace: NamespaceName) -> None:
        if not self.sees(role, namespace):
            raise ManagementError(401, "User not authorised to access virtual host")

    # --- virtual hosts ------------------------------------------------------------------------------------------

    def namespaces(self, role: str) -> list[NamespaceName]:
        """The namespaces that the role may see."""
        registry = self.admin.registry
        found = [name for tenant in registry.tenants.names() for name in registry.namespaces.names(tenant)]
        return [name for name in found if self.sees(role, name)]

    def namespace(self, call: Call) -> NamespaceName:
        """The namespace of the vhost in the path; 401 if the role may not see it, 404 if it does not exist."""
        name = namespace_of_vhost(call.path["vhost"])
        self.check_sees(call.role, name)
        if self.admin.registry.namespaces.find(name) is None:
            raise not_found()
        return name

    async def exchanges_of(self, call: Call) -> tuple[NamespaceName, NamespaceExchanges]:
        name = self.namespace(call)
        return name, await self.exchanges.open(name)

    async def queues_of(self, call: Call) -> tuple[NamespaceName, NamespaceQueues]:
        name = self.namespace(call)
        return name, await self.queues.open(name)

    # --- other brokers ------------------------------------------------------------------------------------------

    async def list_elsewhere(self, call: Call, path: str, *, columns: str = "") -> Items:
        """Items that other brokers list under this path; brokers that do not answer are left out."""
        if is_true(call.query.get("here")):
            return []
        query = f"here=true&columns={columns}" if columns else "here=true"
        asked = AdminCall(call.role, "GET", f"{API}{path}", query)
        answers = await asyncio.gather(*(self._ask(one, asked) for one in self._others()))
        found: Items = []
        for answer in answers:
            if answer:
                found += msgspec.json.decode(answer, type=list[dict[str, Any]])
        return found

    async def closed_elsewhere(self, call: Call, name: str, reason: str) -> bool:
        """Ask the other brokers to close a connection; returns whether one of them had it."""
        if is_true(call.query.get("here")):
            return False
        path = f"{API}/connections/{quote(name, safe='')}"
        asked = AdminCall(call.role, "DELETE", path, "here=true", headers={REASON: reason})
        answers = await asyncio.gather(*(self._ask(one, asked) for one in self._others()))
        return any(answer is not None for answer in answers)

    async def close_all(self, call: Call, column: str, value: str, reason: str) -> None:
        """Close connections of a `user` or `vhost`: all on this broker; on others, those visible to the caller."""
        for connection in self.connections.all():
            info = connection.info
            if value == (info.user if column == "user" else vhost_of(info.namespace)):
                connection.close(reason)
        for item in await self.list_elsewhere(call, "/connections", columns=f"name,{column}"):
            if item.get(column) == value:
                await self.closed_elsewhere(call, item["name"], reason)

    def _others(self) -> list[str]:
        return [one.broker_id for one in self.admin.broker.brokers() if one.broker_id != self.admin.broker_id]

    async def _ask(self, broker_id: str, asked: AdminCall) -> bytes | None:
        try:
            answer = await self.admin.ask_peer(broker_id, asked)
        except WeirError as silent:
            log.info("broker %s did not answer %s %s: %s", broker_id, asked.method, asked.path, silent)
            return None
        return answer.body if answer.status < 300 else None

    # --- routes -------------------------------------------------------------------------------------------------

    def route(
        self,
        method: str,
        path: str,
        summary: str,
        action: Callable[[Call], Awaitable[Any]],
        *,
        body: Any = None,
        body_optional: bool = False,
        answer: Any = None,
        query: tuple[Query, ...] = (),
        creates: bool = False,
    ) -> Route:
        """A route below `/api` that checks for permission to use the management API."""

        async def guarded(call: Call) -> Any:
            self.check_manager(call.role)
            try:
                return await action(call)
            except NotAuthorisedError as refused:
                log.info("http: %s", refused)
                raise ManagementError(401, "Access refused.") from refused

        return Route(
            method,
            f"{API}{path}",
            summary,
            guarded,
            body=body,
            body_optional=body_optional,
            answer=answer,
            query=query,
            creates=creates,
            refusals=_ABOUT,
            tag="rabbitmq",
        )


def _scope(namespace: NamespaceName, name: str) -> Scope:
    """The scope of grants on a queue or exchange; the namespace if the name is no valid topic name."""
    try:
        return topic_of_queue(namespace, name).base
    except InvalidNameError:
        return namespace


def node_name(broker_id: str) -> str:
    """The broker's name in RabbitMQ's format for nodes."""
    return f"weir@{broker_id}"


Stats = dict[str, Any]

#: The counters in a queue's stats, including those that Weir does not count.
_COUNTED = ("publish", "deliver", "deliver_get", "redeliver", "ack", "get", "get_no_ack", "deliver_no_ack")


class Counted:
    """Sums of the totals and rates of several queues."""

    def __init__(self) -> None:
        self._totals = dict.fromkeys(_COUNTED, 0)
        self._rates = dict.fromkeys(_COUNTED, 0.0)

    def add(self, stats: TopicStats) -> None:
        """Add a queue's counters. `ack` is an estimate: deliveries minus redelivered and unacked messages."""
        self._count("publish", stats.published.messages, stats.published.messages_per_s)
        for one in stats.subscriptions:
            if one.name == QUEUE_SUBSCRIPTION:
                for name in ("deliver", "deliver_get"):
                    self._count(name, one.flow.messages, one.flow.messages_per_s)
                self._count("redeliver", one.redelivered, 0.0)
                acked = max(0, one.flow.messages - one.redelivered - one.unacked)
                self._count("ack", acked, one.flow.messages_per_s)

    def _count(self, name: str, messages: int, per_s: float) -> None:
        self._totals[name] += messages
        self._rates[name] += per_s

    def body(self) -> Stats:
        found: Stats = {}
        for name, total in self._totals.items():
            found[name] = total
            found[f"{name}_details"] = rate(self._rates[name])
        return found


def rate(per_s: float = 0.0) -> dict[str, float]:
    return {"rate": round(float(per_s), 3)}


def totals(ready: int, unacked: int) -> Stats:
    """Message counts of queues, with details in RabbitMQ's format."""
    found: Stats = {}
    counts = {"messages": ready + unacked, "messages_ready": ready, "messages_unacknowledged": unacked}
    for name, count in counts.items():
        found[name] = count
        found[f"{name}_details"] = rate()
    return found


class LoadedTopics:
    """A snapshot of the topics loaded on this broker, for statistics."""

    def __init__(self, topics: Iterable[Topic]) -> None:
        self._topics = list(topics)
        self._by_name: dict[TopicName, list[Topic]] = {}
        for topic in self._topics:
            self._by_name.setdefault(topic.name, []).append(topic)
            if topic.name.partition is not None:  # the partitioned queue
                self._by_name.setdefault(topic.name.base, []).append(topic)

    def stats(self, name: TopicName) -> list[TopicStats]:
        """Statistics of the topic, or of its partitions on this broker."""
        return [topic.stats() for topic in self._by_name.get(name, ())]

    def of(self, namespaces: Iterable[NamespaceName]) -> "NamespaceTotals":
        wanted = set(namespaces)
        found = NamespaceTotals()
        for topic in self._topics:
            if topic.name.namespace in wanted:
                found.add(topic.stats())
        return found


class NamespaceTotals:
    """Totals over the loaded queues of namespaces on this broker."""

    def __init__(self) -> None:
        self.counted = Counted()
        self.ready = self.unacked = 0

    def add(self, stats: TopicStats) -> None:
        self.counted.add(stats)
        for one in stats.subscriptions:
            if one.name == QUEUE_SUBSCRIPTION:
                self.ready += max(0, one.backlog - one.unacked)
                self.unacked += one.unacked
