"""Writes trace events to the topic `weir_trace` of their namespace, in batches of one entry each.

Tracing never delays messages: the broker drops and counts events that it cannot write, and logs a warning.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from weir.broker.api.queues import Queue, QueueMessages, Queues
from weir.broker.api.schemas import SchemaData
from weir.model.errors import SubscriptionNotFoundError, WeirError
from weir.model.messages import TRACE_TOPIC, TraceEvent
from weir.model.policies import Policies, SchemaCompatibility
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.wire.trace import SCHEMA, encode_event

log = logging.getLogger(__name__)

#: Time between two writes of buffered events, in seconds, and the most events of one entry.
_GATHER_S = 0.1
_MOST_OF_AN_ENTRY = 2000
#: Most buffered events of one namespace: if storage is too slow, the broker drops further ones.
_MOST_WAITING = 50_000


class TopicRegistry(Protocol):
    """The part of `broker.registry.Registry` that the trace log needs."""

    async def ensure_topic(self, name: TopicName, *, create: bool = True) -> object: ...

    async def change_policies(self, where: TopicName, change: Callable[[Policies], Policies]) -> Policies: ...


class SchemaStore(Protocol):
    async def register(
        self, topic: TopicName, schema: SchemaData, *, role: str, strategy: SchemaCompatibility | None = None
    ) -> bytes: ...


class TraceLog:
    """The trace log of one broker. It drops all events before `lead_to` sets the target."""

    def __init__(self, clock: Clock, broker: str = "") -> None:
        self.broker = broker
        self.written = 0
        self.dropped = 0
        self._clock = clock
        self._tasks = TaskScope("traces")
        self._queues: Queues | None = None
        self._registry: TopicRegistry | None = None
        self._schemas: SchemaStore | None = None
        self._waiting: dict[NamespaceName, list[TraceEvent]] = {}
        self._made: dict[NamespaceName, Queue] = {}
        self._writing: asyncio.Task[None] | None = None
        self._warned = False

    def lead_to(self, queues: Queues, registry: TopicRegistry, schemas: SchemaStore, broker: str) -> None:
        self._queues = queues
        self._registry = registry
        self._schemas = schemas
        self.broker = broker

    def note(self, namespace: NamespaceName, event: TraceEvent) -> None:
        """Buffer or drop an event; never waits."""
        if self._queues is None:
            return
        waiting = self._waiting.get(namespace)
        if waiting is None:
            waiting = self._waiting[namespace] = []
        if waiting and _extended(waiting[-1], event):
            return
        if len(waiting) >= _MOST_WAITING:
            self._drop(1, "storage is too slow")
            return
        waiting.append(event)
        if self._writing is None:
            self._writing = self._tasks.spawn(self._write_soon(), "write traces")

    def _drop(self, count: int, why: object) -> None:
        self.dropped += count
        if not self._warned:
            self._warned = True
            log.warning("message traces dropped: %s", why)

    async def _write_soon(self) -> None:
        try:
            while self._waiting:
                await self._clock.sleep(_GATHER_S)
                for namespace in list(self._waiting):
                    await self._write(namespace)
        finally:
            self._writing = None

    async def _write(self, namespace: NamespaceName) -> None:
        events = self._waiting.pop(namespace, [])
        for start in range(0, len(events), _MOST_OF_AN_ENTRY):
            some = events[start : start + _MOST_OF_AN_ENTRY]
            try:
                queue = await self._queue(namespace)
                await queue.publish(QueueMessages([encode_event(event) for event in some]))
                self.written += len(some)
                self._warned = False
            except WeirError as failed:
                self._made.pop(namespace, None)
                self._drop(len(some), failed)
            await self._clock.sleep(0)

    async def _queue(self, namespace: NamespaceName) -> Queue:
        """The queue of the trace topic. Creates a missing topic with a key index for lookups and a schema for
        Spark."""
        made = self._made.get(namespace)
        if made is not None and made.alive:
            return made
        if self._queues is None or self._registry is None or self._schemas is None:
            raise SubscriptionNotFoundError("traces lead nowhere")
        topic = TopicName(namespace, TRACE_TOPIC)
        try:
            await self._registry.ensure_topic(topic, create=False)
        except WeirError:
            await self._registry.ensure_topic(topic)
            await self._registry.change_policies(topic, _indexed)
            schema = SchemaData("JSON", json.dumps(SCHEMA).encode(), "TraceEvent")
            await self._schemas.register(topic, schema, role="weir")
        queue = await (await self._queues.open(namespace)).look(TRACE_TOPIC)
        self._made[namespace] = queue
        return queue

    async def close(self) -> None:
        """Write the remaining events."""
        for namespace in list(self._waiting):
            await self._write(namespace)
        await self._tasks.close()


def _indexed(policies: Policies) -> Policies:
    return replace(policies, key_index=True, trace_ppm=0)


def _extended(last: TraceEvent, event: TraceEvent) -> bool:
    """Extend the last event if this is the same event of the following messages at the same time; return
    whether."""
    same = (
        last.ms == event.ms
        and last.end == event.first
        and last.first >= 0
        and last.event == event.event
        and last.subscription == event.subscription
        and last.consumer == event.consumer
        and last.topic == event.topic
        and last.times == event.times
        and last.reason == event.reason
        and last.producer == event.producer
        and last.ledger == event.ledger
        and last.ledger < 0
    )
    if same:
        last.end = event.end
    return same
