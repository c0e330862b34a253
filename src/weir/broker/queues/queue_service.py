"""The queues of all open namespaces of this broker, and the watch that opens queues with timers.

Messages that expire or are delayed must not wait for a client to open their queue. Therefore each broker regularly
searches for queues with such rules that it owns, or can own, for example after a restart or a move of topics. The
search covers only namespaces that ever had such a queue, or that have policies.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from weir.broker.api.queues import Exchanges, Queue, Queues
from weir.broker.broker import Broker
from weir.broker.context import BrokerContext
from weir.broker.metadata.registry import Registry
from weir.broker.queues.namespace_queues import LocalQueues
from weir.broker.queues.queue_policies import (
    WATCHED_PROPERTY,
    PolicedExchanges,
    declaration_of,
    policed,
    policies_of,
)
from weir.model.errors import NamespaceNotFoundError, NotAuthorisedError, QueueArgumentError, WeirError
from weir.model.queues import QueueDeclaration, queue_of_topic
from weir.model.registry import SYSTEM_NAMESPACE, Action, TopicRecord
from weir.model.topics import Domain, NamespaceName, TopicName
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope

log = logging.getLogger(__name__)
_FIRST_S = 1.0
_EVERY_S = 10.0
#: The search uses at most 1 / `_SHARE` of the time.
_SHARE = 50


class OwnQueues(Protocol):
    """The queues of one namespace on this broker."""

    def find(self, name: str) -> Queue | None: ...

    async def look(self, name: str) -> Queue:
        """NotOwnerError if another broker owns it."""


class QueueWatch:
    def __init__(
        self,
        registry: Registry,
        broker: Broker,
        open_namespace: Callable[[NamespaceName], Awaitable[OwnQueues]],
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._broker = broker
        self._open_namespace = open_namespace
        self._clock = clock

    async def run(self) -> None:
        """Repeat the search forever."""
        await self._clock.sleep(_FIRST_S)
        while True:
            began = self._clock.monotonic()
            try:
                await self.round()
            except WeirError as failed:
                log.warning("search for queues with timers failed, it will be repeated: %s", failed)
            await self._clock.sleep(max(_EVERY_S, _SHARE * (self._clock.monotonic() - began)))

    async def round(self) -> None:
        for tenant in self._registry.tenants.names():
            for namespace in self._registry.namespaces.names(tenant):
                if namespace != SYSTEM_NAMESPACE and self._is_watched(namespace):
                    await self._look_through(namespace)

    def _is_watched(self, namespace: NamespaceName) -> bool:
        found = self._registry.namespaces.find(namespace)
        return found is not None and (
            WATCHED_PROPERTY in found.properties or bool(policies_of(self._registry, namespace).policies)
        )

    async def _look_through(self, namespace: NamespaceName) -> None:
        queues = await self._open_namespace(namespace)
        async for record in self._registry.topics.of(namespace, Domain.PERSISTENT):
            topic, name = record.name, queue_of_topic(record.name)
            if record.deleting or record.partitions or queues.find(name) is not None:
                continue
            if not self._acts(record, topic) or not self._broker.owner_now(topic).here:
                continue
            try:
                await queues.look(name)
            except WeirError as failed:  # for example, another broker was faster
                log.info("queue %s not opened on this broker: %s", topic, failed)

    def _acts(self, record: TopicRecord, topic: TopicName) -> bool:
        declared = declaration_of(record, topic)
        table = policies_of(self._registry, topic.namespace)
        if declared is None and not table.policies:
            return False
        try:
            return policed(declared or QueueDeclaration(queue_of_topic(topic)), table).acts_by_itself
        except QueueArgumentError:
            return False


class PolicedExchangeService(Protocol):
    async def open(self, namespace: NamespaceName) -> PolicedExchanges:
        """NamespaceNotFoundError."""


class QueueService:
    """Implements `api.Queues`. Opened namespaces stay open: they contain the queues in memory."""

    def __init__(
        self, context: BrokerContext, registry: Registry, broker: Broker, exchanges: PolicedExchangeService
    ) -> None:
        self._context = context
        self._registry = registry
        self._broker = broker
        self._exchanges = exchanges
        self._tasks = TaskScope("queues")
        self._namespaces: dict[NamespaceName, LocalQueues] = {}
        #: The target queues of dead letters.
        self._everywhere: Queues = self
        context.letters.lead_to(self)

    def lead_to(self, everywhere: Queues) -> None:
        """Set the target queues of dead letters, including those of other brokers and of partitioned topics."""
        self._everywhere = everywhere

    def start(self) -> None:
        """Start to disconnect consumers with revoked permissions, and to open queues with timers."""
        self._tasks.spawn(self._revoke(), "revoking")
        watch = QueueWatch(self._registry, self._broker, self.open, self._context.runtime.clock)
        self._tasks.spawn(watch.run(), "watch")

    async def _revoke(self) -> None:
        """Close consumers of queues in memory whose role lost its grant; the broker does so for topics."""
        guard = self._context.guard
        seen = guard.revision
        while True:
            seen = await guard.change(seen)
            for queue in [queue for namespace in self._namespaces.values() for queue in namespace.all_in_memory]:
                for consumer in list(queue.subscription.consumers):
                    try:
                        guard.check(consumer.request.role, queue.scope, Action.CONSUME)
                    except NotAuthorisedError as denied:
                        consumer.denied = denied
                        queue.subscription.expel(consumer, denied.what)

    async def open(self, namespace: NamespaceName) -> LocalQueues:
        """Open a namespace; if it no longer exists, drop its queues in memory."""
        try:
            exchanges = await self._exchanges.open(namespace)
        except NamespaceNotFoundError:
            gone = self._namespaces.pop(namespace, None)
            if gone is not None:
                gone.close()
            raise
        found = self._namespaces.get(namespace)
        if found is None:
            found = self._namespaces[namespace] = LocalQueues(
                namespace,
                self._context,
                self._registry,
                self._broker,
                exchanges,
                everywhere=self._everywhere,
                memory=self._context.queue_budget,
                tasks=self._tasks,
            )
            if len(self._namespaces) == 1:
                self._tasks.spawn(self._follow_policies(), "policies")
        return found

    async def _follow_policies(self) -> None:
        """Apply policy changes of other brokers to the queues in memory; topics receive them like all policies."""
        while self._namespaces:
            await self._context.runtime.clock.sleep(self._context.settings.sweep_s)
            for namespace in list(self._namespaces.values()):
                namespace.apply_changed()

    async def close(self) -> None:
        for namespace in self._namespaces.values():
            namespace.close()
        self._namespaces.clear()
        await self._tasks.close()


async def forget_bindings(exchanges: Exchanges, topic: TopicName) -> None:
    """Remove the bindings of a queue whose topic was deleted, possibly by a client of another protocol."""
    try:
        found = await exchanges.open(topic.namespace)
    except NamespaceNotFoundError:
        return
    await found.forget_queue(queue_of_topic(topic))
