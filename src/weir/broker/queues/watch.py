"""Queues that have something to do by themselves are opened by whichever broker has them, or can have them.

What waits in a queue for its time to be over must not wait for a client, too: after a start, and when topics have
moved, queues with such rules are looked for. Only namespaces that ever had one are looked through.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from weir.broker.api import Queue
from weir.broker.broker import Broker
from weir.broker.queues.declared import declaration_of, policed, policies_of
from weir.broker.queues.rules import rules_of
from weir.broker.registry.registry import Registry
from weir.model.errors import QueueArgumentError, WeirError
from weir.model.queues import QueueDeclaration, queue_of_topic
from weir.model.registry import SYSTEM_NAMESPACE, TopicRecord
from weir.model.topics import Domain, NamespaceName, TopicName
from weir.runtime.interfaces import Clock

log = logging.getLogger(__name__)

#: The property of a namespace that has, or had, such queues.
WATCHED_PROPERTY = "weir.queues"
WATCHED = "watched"
_FIRST_S = 1.0
_EVERY_S = 10.0
#: Looking takes at most this part of the time.
_SHARE = 50


class OwnQueues(Protocol):
    """Those of one namespace that this broker has."""

    def find(self, name: str) -> Queue | None: ...

    async def look(self, name: str) -> Queue:
        """NotOwnerError if another has it."""


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
        """For ever."""
        await self._clock.sleep(_FIRST_S)
        while True:
            began = self._clock.monotonic()
            try:
                await self.round()
            except WeirError as failed:
                log.warning("queues could not be looked for this time: %s", failed)
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
            except WeirError as failed:  # another broker was faster, say
                log.info("queue %s is not opened here: %s", topic, failed)

    def _acts(self, record: TopicRecord, topic: TopicName) -> bool:
        declared = declaration_of(record, topic)
        table = policies_of(self._registry, topic.namespace)
        if declared is None and not table.policies:
            return False
        try:
            return policed(declared or QueueDeclaration(queue_of_topic(topic)), table).acts_by_itself
        except QueueArgumentError:
            return False


async def watch_namespace(registry: Registry, namespace: NamespaceName, declaration: QueueDeclaration) -> None:
    """Have its queues looked for from now on, if this one has something to do by itself."""
    if not rules_of(declaration).acts_by_itself:
        return
    found = registry.namespaces.find(namespace)
    if found is None or WATCHED_PROPERTY not in found.properties:
        await registry.change_properties(namespace, lambda now: {**now, WATCHED_PROPERTY: WATCHED})
