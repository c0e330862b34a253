"""Queues: list with pages, columns and order; get, put, delete, purge."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from weir.admin.amqp.bodies import QueueBody
from weir.admin.amqp.connections import consumer_bodies
from weir.admin.amqp.context import HERE, Management
from weir.admin.amqp.listing import COLUMNS, LIST_QUERY, Item, Wanted, answered_one, is_true
from weir.admin.amqp.refusals import ManagementError
from weir.admin.amqp.stats import Counted, LoadedTopics, totals
from weir.admin.amqp.values import as_json, from_json
from weir.admin.http import Response
from weir.admin.overviews import OverviewBody, Overviews
from weir.admin.routing import Call, Query, Route
from weir.broker.api import NamespaceQueues, Queue, QueueCounts, QueueOutline, TopicStats
from weir.model.errors import QueueNotFoundError, WeirError
from weir.model.queues import QUEUE_SUBSCRIPTION, QueueDeclaration, topic_of_queue, vhost_of
from weir.model.registry import Action
from weir.model.topics import NamespaceName

#: So many are described in one answer; who has more asks for pages.
_MOST = 10_000
#: Queues that are looked for at the same time for one list.
_AT_ONCE = 32
_QUERY = (*LIST_QUERY, HERE)
#: Columns that need no queue to be opened.
_NAMES = frozenset(("name", "vhost"))


class _Named(NamedTuple):
    namespace: NamespaceName
    name: str


class QueueRoutes:
    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[Route]:
        route, one = self._management.route, "/queues/{vhost}/{name}"
        listed: Any = list[Any] | dict[str, Any]
        return [
            route("GET", "/queues", "All queues.", self._all, answer=listed, query=_QUERY),
            route("GET", "/queues/{vhost}", "Those of a vhost.", self._of_vhost, answer=listed, query=_QUERY),
            route("GET", one, "One queue.", self._get, answer=dict[str, Any], query=(COLUMNS,)),
            route("PUT", one, "Declare a queue.", self._put, body=QueueBody, body_optional=True, creates=True),
            route(
                "DELETE",
                one,
                "Delete a queue with its messages and bindings.",
                self._delete,
                query=(
                    Query("if-empty", str, "true: only if it has no messages"),
                    Query("if-unused", str, "true: only if it has no consumers"),
                ),
            ),
            route("DELETE", f"{one}/contents", "Drop the messages that are ready.", self._purge),
        ]

    # --- lists --------------------------------------------------------------------------------------------------

    async def _all(self, call: Call) -> Any:
        return await self._list(call, self._management.namespaces(call.role))

    async def _of_vhost(self, call: Call) -> Any:
        return await self._list(call, [self._management.namespace(call)])

    async def _list(self, call: Call, namespaces: Sequence[NamespaceName]) -> Any:
        """Names first: what is not on the page is not opened, unless the order asks for it."""
        wanted = Wanted(call.query)
        total, found = 0, []
        elsewhere = await self._in_memory_elsewhere(call)
        for namespace in namespaces:
            names = await self._names(call, namespace, elsewhere.get(vhost_of(namespace), ()))
            total += len(names)
            found += [_Named(namespace, name) for name in names if wanted.takes(name)]
        filtered = len(found)
        if not wanted.by_name:
            items = wanted.ordered(await self._described(call.role, found))
            return wanted.answer(wanted.cut(items), filtered=filtered, total=total)
        if wanted.sort == "name":
            found.sort(key=lambda one: one.name, reverse=wanted.reverse)
        elif wanted.reverse:
            found.reverse()
        on_page = wanted.cut(found)
        if wanted.columns and _NAMES.issuperset(wanted.columns):
            items = [{"name": as_json(one.name), "vhost": vhost_of(one.namespace)} for one in on_page]
        else:
            items = await self._described(call.role, on_page)
        return wanted.answer(items, filtered=filtered, total=total)

    async def _names(self, call: Call, namespace: NamespaceName, elsewhere: Sequence[str]) -> Sequence[str]:
        """Of every topic, and of queues in the memory of any broker; for another broker, of the latter here."""
        queues = await self._management.queues.open(namespace)
        names = await queues.names()
        if is_true(call.query.get("here")):
            found = [(name, queues.find(name)) for name in names]
            return [name for name, queue in found if queue is not None and queue.declaration.in_memory]
        return sorted({*names, *elsewhere}) if elsewhere else names

    async def _in_memory_elsewhere(self, call: Call) -> dict[str, list[str]]:
        """By vhost."""
        found: dict[str, list[str]] = {}
        for item in await self._management.list_elsewhere(call, "/queues", columns="name,vhost"):
            found.setdefault(item["vhost"], []).append(item["name"])
        return found

    async def _described(self, role: str, named: Sequence[_Named]) -> list[Item]:
        """Those that are still there, in their order. None is opened for it that is a topic."""
        if len(named) > _MOST:
            raise ManagementError(
                400, f"{len(named)} queues are too many for one answer", hint="ask for pages, sorted by name"
            )
        turn = asyncio.Semaphore(_AT_ONCE)

        async def found_one(wanted: _Named) -> Queue | QueueOutline | WeirError:
            async with turn:
                queues = await self._management.queues.open(wanted.namespace)
                try:
                    known = queues.find(wanted.name)
                    return known or await queues.outline(wanted.name) or await queues.look(wanted.name)
                except WeirError as failed:  # its broker does not answer, say
                    return failed

        found = await asyncio.gather(*map(found_one, named))
        loaded = LoadedTopics(self._management.admin.broker.loaded)
        topics = [topic for one in found if isinstance(one, QueueOutline) for topic in one.topics]
        overviews = await Overviews(self._management.admin).of(role, topics)
        items = []
        for wanted, queue in zip(named, found, strict=True):
            if isinstance(queue, QueueNotFoundError):
                continue
            if isinstance(queue, WeirError):
                items.append(_bare(wanted, self._management.node, queue))
            elif isinstance(queue, QueueOutline):
                parts = [overviews[topic] for topic in queue.topics if topic in overviews]
                items.append(self._item(wanted.namespace, queue, _counts_of(parts), loaded))
            else:
                items.append(await self._body(wanted.namespace, queue, loaded))
        return items

    # --- one ----------------------------------------------------------------------------------------------------

    async def _get(self, call: Call) -> Item:
        namespace, queues = await self._management.queues_of(call)
        queue = await queues.look(call.path["name"])
        item = await self._body(namespace, queue, LoadedTopics(self._management.admin.broker.loaded))
        consumers = [
            one
            for one in consumer_bodies(self._management.connections.all(), self._management.node)
            if one["queue"] == {"name": item["name"], "vhost": item["vhost"]}
        ]
        more = {"consumer_details": consumers, "deliveries": [], "incoming": [], **self._owner(queue)}
        return answered_one(call.query, {**item, **more})

    def _owner(self, queue: Queue) -> Item:
        """Of an exclusive queue: the connection that has it, if that is one of this broker's."""
        for one in self._management.connections.all() if queue.connection else ():
            if one.info.id == queue.connection:
                info = one.info
                details = {"name": info.name, "peer_host": info.peer_host, "peer_port": info.peer_port}
                return {"owner_pid_details": details}
        return {}

    async def _body(self, namespace: NamespaceName, queue: Queue, loaded: LoadedTopics) -> Item:
        return self._item(namespace, queue, await queue.counts(), loaded)

    def _item(
        self, namespace: NamespaceName, queue: Queue | QueueOutline, counts: QueueCounts, loaded: LoadedTopics
    ) -> Item:
        declared = queue.declaration
        stats = [] if declared.in_memory else loaded.stats(topic_of_queue(namespace, declared.name))
        policy = queue.policy
        item: Item = {
            "name": as_json(declared.name),
            "vhost": vhost_of(namespace),
            "type": queue.rules.kind.value,
            "durable": declared.durable,
            "auto_delete": declared.auto_delete,
            "exclusive": declared.exclusive,
            "arguments": as_json(declared.arguments),
            "node": self._management.node,
            "state": "running",
            "consumers": counts.consumers,
            "consumer_utilisation": 1.0 if counts.consumers and not counts.ready else 0.0,
            "consumer_capacity": 1.0 if counts.consumers and not counts.ready else 0.0,
            **totals(counts.ready, counts.unacked),
            "policy": None if policy is None else policy.name,
            "operator_policy": None,
            "effective_policy_definition": {} if policy is None else as_json(policy.definition),
            "memory": 0,
            "exclusive_consumer_tag": None,
            "single_active_consumer_tag": None,
            "head_message_timestamp": None,
        }
        return {**item, **_stored(stats)}

    async def _put(self, call: Call) -> Response | None:
        _, queues = await self._management.queues_of(call)
        name, body = call.path["name"], call.body or QueueBody()
        known = await _is_there(queues, name)
        arguments = from_json(body.arguments, "arguments")
        await queues.declare(
            call.role,
            QueueDeclaration(name, durable=body.durable, auto_delete=body.auto_delete, arguments=arguments),
        )
        return None if known else Response(201)

    async def _delete(self, call: Call) -> None:
        namespace, queues = await self._management.queues_of(call)
        name = call.path["name"]
        self._management.check_configure(call.role, namespace, name)
        await queues.look(name)
        await queues.delete(
            call.role,
            name,
            if_unused=is_true(call.query["if-unused"]),
            if_empty=is_true(call.query["if-empty"]),
        )

    async def _purge(self, call: Call) -> None:
        namespace, queues = await self._management.queues_of(call)
        self._management.check(call.role, Action.CONSUME, namespace, call.path["name"])
        await (await queues.look(call.path["name"])).purge()


async def _is_there(queues: NamespaceQueues, name: str) -> bool:
    try:
        await queues.look(name)
    except QueueNotFoundError:
        return False
    return True


def _bare(named: _Named, node: str, failed: WeirError) -> Item:
    """Of one that cannot be asked now."""
    name, vhost = as_json(named.name), vhost_of(named.namespace)
    return {"name": name, "vhost": vhost, "node": node, "state": "down", "reason": failed.what}


def _counts_of(parts: Sequence[OverviewBody]) -> QueueCounts:
    """Of a queue that is not open here."""
    ready = unacked = consumers = 0
    for part in parts:
        queue = part.subscriptions.get(QUEUE_SUBSCRIPTION)
        if queue is None:  # nothing was consumed yet
            ready += part.messages
        else:
            ready += max(0, queue.msgBacklog - queue.unackedMessages)
            unacked += queue.unackedMessages
            consumers += len(queue.consumers)
    return QueueCounts(ready, unacked, consumers)


def _stored(stats: Sequence[TopicStats]) -> Item:
    """What is known of a queue that is a topic on this broker, or several."""
    counted = Counted()
    held = 0
    for part in stats:
        counted.add(part)
        held += sum(one.backlog_bytes for one in part.subscriptions if one.name == QUEUE_SUBSCRIPTION)
    return {
        "message_stats": counted.body(),
        "message_bytes": held,
        "message_bytes_ready": held,
        "message_bytes_unacknowledged": 0,
        "message_bytes_persistent": held,
        "message_bytes_ram": 0,
    }
