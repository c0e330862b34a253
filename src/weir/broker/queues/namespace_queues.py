"""The queues of one namespace on one broker: lookup, declaration, deletion, policies, limits, and the release of
exclusive queues."""

import logging
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from weir.broker.api.queues import NamespaceExchanges, Queue, QueueOutline, Queues
from weir.broker.broker import Broker
from weir.broker.context import BrokerContext
from weir.broker.metadata.registry import Registry
from weir.broker.queues.durable_queue import DurableQueue, StreamQueue
from weir.broker.queues.local_queue import LocalQueue
from weir.broker.queues.memory_queue import MemoryQueue
from weir.broker.queues.queue_arguments import check_equivalent, rules_of
from weir.broker.queues.queue_policies import (
    NamespacePolicies,
    PolicedExchanges,
    PolicyTable,
    declaration_of,
    kept_by,
    limits_of,
    watch_namespace,
)
from weir.broker.topics.topic import BrokerTopic
from weir.model.errors import (
    InvalidNameError,
    QueueArgumentError,
    QueueInUseError,
    QueueLockedError,
    QueueNotFoundError,
    TooManyError,
    TopicClosedError,
    TopicExistsError,
    TopicNotFoundError,
    WeirError,
)
from weir.model.queues import (
    DELAYED_PREFIX,
    QUEUE_PROPERTY,
    QueueDeclaration,
    QueueKind,
    QueueLimits,
    QueuePolicy,
    QueueRules,
    check_name,
    delay_queue,
    queue_in_vhost,
    queue_of_topic,
    topic_of_queue,
    vhost_of,
)
from weir.model.registry import TopicRecord
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.budgets import ByteBudget
from weir.runtime.tasks import TaskScope
from weir.runtime.waiters import NamedLocks
from weir.wire.exchanges import encode_declaration


class OpenQueues:
    """The open queues of a namespace by name, with policies and limits; a subclass creates and deletes queues."""

    def __init__(
        self, namespace: NamespaceName, context: BrokerContext, registry: Registry, exchanges: PolicedExchanges
    ) -> None:
        self._namespace = namespace
        self._vhost = vhost_of(namespace)
        self._context = context
        self._registry = registry
        self._exchanges = exchanges
        self._policies = NamespacePolicies(namespace, registry, context.guard)
        self._open: dict[str, DurableQueue] = {}
        self._in_memory: dict[str, MemoryQueue] = {}
        self._applied: PolicyTable | None = None
        self.apply_changed()

    @property
    def all_in_memory(self) -> Sequence[MemoryQueue]:
        return list(self._in_memory.values())

    def find(self, name: str) -> LocalQueue | None:
        transient = self._in_memory.get(name)
        if transient is not None:
            return transient
        queue = self._open.get(name)
        if queue is None or queue.alive:
            return queue
        del self._open[name]
        return None

    def closed(self, queue: LocalQueue) -> None:
        if self._open.get(queue.name) is queue:
            del self._open[queue.name]

    def in_memory(self, name: str) -> MemoryQueue | None:
        """The queue of this name in the memory of this broker."""
        return self._in_memory.get(name)

    # --- policies ---------------------------------------------------------------------------------------

    @property
    def limits(self) -> QueueLimits:
        return limits_of(self._registry, self._namespace)

    def policies(self) -> Sequence[QueuePolicy]:
        return self._policies.table.policies

    def policy_of(self, declaration: QueueDeclaration) -> QueuePolicy | None:
        return self._policies.policy_of(declaration)

    def rules_of(self, declaration: QueueDeclaration) -> QueueRules:
        return self._policies.rules_of(declaration)

    async def set_policy(self, role: str, policy: QueuePolicy) -> None:
        """Set a policy; other brokers follow through the registry."""
        await self._policies.set(role, policy)
        self.apply()

    async def clear_policy(self, role: str, name: str, *, operator: bool = False) -> None:
        await self._policies.clear(role, name, operator=operator)
        self.apply()

    def apply_changed(self) -> None:
        if self._policies.table is not self._applied:
            self.apply()

    def apply(self) -> None:
        """Apply the current policies to the open queues and exchanges."""
        table = self._applied = self._policies.table
        self._exchanges.police(table.alternate_of)
        for queue in list(self._in_memory.values()):
            queue.apply()
        for durable in list(self._open.values()):
            rules = self._context.queue_rules.of(durable.topic.name)
            if durable.alive and rules != durable.topic.queue_rules:
                durable.topic.apply_queue(rules)


log = logging.getLogger(__name__)

#: Most queues in memory of one namespace.
_MOST_IN_MEMORY = 100_000
_ATTEMPTS = 10
#: Exclusive queues of a closed connection deleted in one turn of the event loop.
_ENDED_PER_TURN = 32


class LocalQueues(OpenQueues):
    """Implements `api.NamespaceQueues`. `everywhere`: the queues of the cluster, as targets of dead letters."""

    def __init__(
        self,
        namespace: NamespaceName,
        context: BrokerContext,
        registry: Registry,
        broker: Broker,
        exchanges: PolicedExchanges,
        *,
        everywhere: Queues,
        memory: ByteBudget,
        tasks: TaskScope,
    ) -> None:
        super().__init__(namespace, context, registry, exchanges)
        self._broker = broker
        self._memory = memory
        self._tasks = tasks
        #: Exclusive queues, by their connection and name.
        self._exclusive: dict[str, dict[str, LocalQueue]] = {}
        #: Serializes changes of the queue of a name.
        self._alone = NamedLocks()
        self._everywhere = everywhere

    # --- finding ----------------------------------------------------------------------------------------

    def topic_of(self, name: str) -> TopicName:
        """The topic of a durable queue, which may be a partition of one."""
        return self._topic_of(name)

    async def get(self, role: str, name: str, *, connection: str = "") -> LocalQueue:
        self._context.guard.check(role, self._topic_of(name), None)
        found = self.find(name)
        if found is not None:
            self._check_owner(found, connection)
            return found
        return await self.look(name)

    async def look(self, name: str) -> LocalQueue:
        found = self.find(name)
        if found is not None:
            return found
        topic = self._topic_of(name)
        for _ in range(_ATTEMPTS - 1):
            with suppress(TopicClosedError):
                return await self._opened(name, topic)
        return await self._opened(name, topic)  # the queue exists, even if its topic cannot be loaded now

    async def outline(self, name: str) -> QueueOutline | None:
        topic = self._topic_of(name)
        record = await self._registry.topics.look(topic)
        if record is None or record.deleting:
            return None
        declaration = declaration_of(record, topic) or QueueDeclaration(name)
        parts = [topic] if topic.partition is not None else record.parts()
        return QueueOutline(declaration, self.rules_of(declaration), self.policy_of(declaration), parts)

    async def _opened(self, name: str, topic: TopicName) -> LocalQueue:
        """Open the queue of a topic; TopicClosedError if the topic is deleted or moved meanwhile."""
        try:
            loaded = await self._broker.load(topic, create=False)
            record = await self._registry.ensure_topic(topic, create=False)
        except TopicNotFoundError as missing:
            found = self.find(name)
            if found is not None:  # created meanwhile
                return found
            raise QueueNotFoundError(f"no {self._said(name)}") from missing
        found = self.find(name)
        if found is not None:
            return found
        if not isinstance(loaded, BrokerTopic) or not loaded.alive:
            raise TopicClosedError(f"{topic} is not served here any more")
        declared = declaration_of(record, topic)
        declaration = declared or QueueDeclaration(name)
        kind = StreamQueue if loaded.queue_rules.kind is QueueKind.STREAM else DurableQueue
        queue = self._open[name] = kind(self, declaration, loaded, self._tasks)
        loaded.on_growth(queue.topic_changed, own=True)
        if kind is DurableQueue:
            queue.keep(self._context.runtime)
            if declared is not None:
                queue.declared()
                await queue.ensure_subscription()
        return queue

    def _topic_of(self, name: str) -> TopicName:
        """The topic of a queue, or a partition of a topic."""
        try:
            said = TopicName.parse(f"persistent://{self._namespace}/{name}")
        except InvalidNameError:
            return topic_of_queue(self._namespace, name)
        as_topic = topic_of_queue(self._namespace, name)
        if (said.partition is not None or said != as_topic) and self._registry.topics.find(said) is not None:
            return said
        return as_topic

    def _check_owner(self, queue: LocalQueue, connection: str) -> None:
        if isinstance(queue, MemoryQueue) and queue.declaration.exclusive and queue.connection != connection:
            raise self._locked(queue.name)

    def _locked(self, name: str) -> QueueLockedError:
        return QueueLockedError(
            f"cannot obtain exclusive access to locked {self._said(name)}. It could be originally declared on "
            "another connection or the exclusive property value does not match that of the original declaration."
        )

    def _said(self, name: str) -> str:
        return queue_in_vhost(name, self._vhost)

    async def names(self) -> Sequence[str]:
        found = dict.fromkeys(self._in_memory)
        async for some in self._registry.topic_names(self._namespace):
            found.update((queue_of_topic(topic), None) for topic in some if topic.persistent)
        return sorted(name for name in found if not name.startswith(DELAYED_PREFIX))

    # --- declaring --------------------------------------------------------------------------------------

    async def declare(self, role: str, wanted: QueueDeclaration, *, connection: str = "") -> LocalQueue:
        if not wanted.name:
            wanted = replace(wanted, name=self._new_name())
        elif (
            self.find(wanted.name) is None
            and await self._registry.topics.look(self._topic_of(wanted.name)) is None
        ):
            check_name(wanted.name)
        rules_of(wanted, vhost=self._vhost)
        name = wanted.name
        topic = self._topic_of(name)
        self._check_configure(role, topic)
        return await self._declared(wanted, topic, connection)

    async def delayed(self, exchange: str) -> LocalQueue:
        wanted = delay_queue(exchange)
        try:
            return await self.look(wanted.name)
        except QueueNotFoundError:
            return await self._declared(wanted, self._topic_of(wanted.name), "")

    async def forget_delayed(self, exchange: str) -> None:
        name = delay_queue(exchange).name
        async with self._alone.of(name):
            try:
                await self._end(await self.look(name), "the exchange is deleted")
            except QueueNotFoundError:
                return

    async def _declared(self, wanted: QueueDeclaration, topic: TopicName, connection: str) -> LocalQueue:
        name = wanted.name
        async with self._alone.of(name):
            for _ in range(_ATTEMPTS):
                try:
                    return await self._declare(wanted, topic, connection)
                except (TopicClosedError, TopicExistsError, QueueNotFoundError):
                    continue  # a concurrent change deleted, moved or created it
        raise TopicClosedError(f"{self._said(name)} is made and deleted again and again", hint="try again")

    async def _declare(self, wanted: QueueDeclaration, topic: TopicName, connection: str) -> LocalQueue:
        name = wanted.name
        there = self.find(name)
        if there is not None:
            self._check_same(there.declaration, wanted, there, connection)
            if there.declaration.in_memory:
                there.used()
                return there
        record = await self._record(topic)
        if record is None:
            await self._check_limit(name)
            if wanted.in_memory:
                return self._make_in_memory(wanted, topic, connection)
            await watch_namespace(self._registry, self._namespace, wanted)
            await self._registry.topics.create(
                topic, properties={QUEUE_PROPERTY: encode_declaration(wanted)}, policies=kept_by(wanted)
            )
        else:
            await self._adopt(record, wanted, topic)
        queue = await self._opened(name, topic)
        queue.used()
        return queue

    async def _check_limit(self, name: str) -> None:
        """TooManyError if the namespace is at its limit of queues."""
        most = self.limits.queues
        if most is not None and not name.startswith(DELAYED_PREFIX) and len(await self.names()) >= most:
            raise TooManyError(
                f"cannot declare queue '{name}': queue limit in vhost '{self._vhost}' ({most}) is reached"
            )

    async def _record(self, topic: TopicName) -> TopicRecord | None:
        """The topic's record; first completes an interrupted deletion."""
        record = await self._registry.topics.look(topic)
        if record is None or not record.deleting:
            return record
        try:
            await self._broker.load(topic, create=False)
        except TopicNotFoundError:
            return None
        return await self._registry.topics.look(topic)

    async def _adopt(self, record: TopicRecord, wanted: QueueDeclaration, topic: TopicName) -> None:
        """Declare the queue of an existing topic. An existing declaration must be equivalent; a topic without one
        gets this one."""
        if record.partitions and topic.partition is None:
            raise QueueArgumentError(
                f"{record.name} has {record.partitions} partitions: each of them is a queue",
                hint=f"name one, such as {wanted.name}-partition-0",
            )
        declared = declaration_of(record, topic)
        if declared is not None or wanted.in_memory or wanted.auto_delete:
            check_equivalent(declared or QueueDeclaration(wanted.name), wanted, self._vhost)
        elif wanted.arguments:
            await watch_namespace(self._registry, self._namespace, wanted)
            text = encode_declaration(wanted)
            await self._registry.change_properties(
                topic.base, lambda properties: {QUEUE_PROPERTY: text, **properties}
            )
            self._open.pop(wanted.name, None)

    def _check_same(
        self, there: QueueDeclaration, wanted: QueueDeclaration, queue: LocalQueue, connection: str
    ) -> None:
        self._check_owner(queue, connection)
        if wanted.exclusive != there.exclusive:
            raise self._locked(there.name)
        if there.in_memory:
            check_equivalent(there, wanted, self._vhost)

    def _make_in_memory(self, wanted: QueueDeclaration, topic: TopicName, connection: str) -> LocalQueue:
        if len(self._in_memory) >= _MOST_IN_MEMORY:
            raise TooManyError(f"{self._namespace} has {_MOST_IN_MEMORY} queues in memory, as many as it may have")
        queue = self._in_memory[wanted.name] = MemoryQueue(
            self._context,
            self,
            wanted,
            connection=connection if wanted.exclusive else "",
            scope=topic.base,
            share=self._memory.share(),
            tasks=self._tasks,
        )
        if queue.connection:
            self._exclusive.setdefault(queue.connection, {})[queue.name] = queue
        return queue

    def _new_name(self) -> str:
        return "amq.gen-" + urlsafe_b64encode(self._context.runtime.rng.randbytes(16)).decode().rstrip("=")

    def _check_configure(self, role: str, topic: TopicName) -> None:
        self._context.guard.check_configure(role, topic)

    # --- deleting ---------------------------------------------------------------------------------------

    async def delete(
        self, role: str, name: str, *, if_unused: bool = False, if_empty: bool = False, connection: str = ""
    ) -> int:
        self._check_configure(role, self._topic_of(name))
        async with self._alone.of(name):
            try:
                queue = await self.look(name)
            except QueueNotFoundError:
                return 0
            self._check_owner(queue, connection)
            counts = await queue.counts()
            if if_empty and counts.ready:
                raise QueueInUseError(f"{self._said(name)} not empty")
            if if_unused and counts.consumers:
                raise QueueInUseError(f"{self._said(name)} in use")
            await self._end(queue, "the queue is deleted")
            return counts.ready

    async def _end(self, queue: LocalQueue, reason: str) -> None:
        """Delete a queue, its bindings first: a repeated delete then completes an interrupted one."""
        if isinstance(queue, MemoryQueue):
            if self._in_memory.get(queue.name) is not queue:
                return
            queue.end(reason)
            del self._in_memory[queue.name]
            self._forget_exclusive(queue)
            await self._exchanges.forget_queue(queue.name)
            return
        await self._exchanges.forget_queue(queue.name)
        queue.gone = True
        if self._open.get(queue.name) is queue:
            del self._open[queue.name]
        if isinstance(queue, DurableQueue):
            try:
                await self._broker.delete(queue.topic.name, force=True)
            except TopicNotFoundError:
                pass
            except WeirError:
                queue.gone = False  # it still exists
                raise

    def unused(self, queue: LocalQueue) -> None:
        self._tasks.spawn(self._end_unused(queue), f"auto-delete {queue.name}")

    def expired(self, queue: LocalQueue) -> None:
        self._tasks.spawn(self._end_unused(queue, "unused for too long"), f"expiry of {queue.name}")

    async def _end_unused(self, queue: LocalQueue, reason: str = "its last consumer has gone") -> None:
        async with self._alone.of(queue.name):
            if not queue.gone and queue.alive and not queue.consumer_count:
                try:
                    await self._end(queue, reason)
                except WeirError as failed:
                    log.warning("deletion of queue %s failed: %s", queue.name, failed)

    async def release(self, connection: str) -> None:
        for number, queue in enumerate(list(self._exclusive.get(connection, {}).values()), 1):
            await self._end(queue, "its connection is gone")
            if not number % _ENDED_PER_TURN:
                await self._context.runtime.clock.sleep(0)

    def _forget_exclusive(self, queue: LocalQueue) -> None:
        mine = self._exclusive.get(queue.connection)
        if mine is not None:
            mine.pop(queue.name, None)
            if not mine:
                del self._exclusive[queue.connection]

    def close(self) -> None:
        """Close all queues: the broker shuts down."""
        for queue in list(self._in_memory.values()):
            queue.end("the broker is going down")
        self._in_memory.clear()
        self._exclusive.clear()
        self._open.clear()

    # --- dead letters -----------------------------------------------------------------------------------

    async def exchanges(self) -> NamespaceExchanges:
        return self._exchanges

    async def target(self, name: str) -> Queue:
        """The target queue of dead letters, without a check of ownership: the broker itself publishes them."""
        found = self.find(name)
        return found if found is not None else await (await self._everywhere.open(self._namespace)).look(name)

    async def topic(self, name: TopicName, *, create: bool) -> Queue:
        """The queue of a topic; `create`: create a missing topic even if the policies forbid clients to."""
        queues, queue = await self._everywhere.open(name.namespace), queue_of_topic(name)
        try:
            return await queues.look(queue)
        except QueueNotFoundError:
            if not create:
                raise
        with suppress(TopicExistsError):  # created concurrently
            await self._registry.topics.create(name.base)
        return await queues.look(queue)
