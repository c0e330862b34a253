"""Queues by the names of whole topics: one whose topic has partitions is all of them together.

What Kafka's clients make has partitions, if only one; the name of one partition is a queue of its own.
"""

from collections.abc import Sequence

from weir.broker.access.security import Authoriser
from weir.broker.api import Exchanges, NamespaceExchanges, NamespaceQueues, Queue, QueueOutline, Queues
from weir.broker.broker import Broker
from weir.broker.queues.combined import CombinedQueue
from weir.broker.queues.rules import check_equivalent
from weir.broker.registry.registry import Registry
from weir.model.errors import InvalidNameError, QueueInUseError, TopicNotFoundError
from weir.model.queues import QueueDeclaration, QueueLimits, QueuePolicy, queue_in_vhost, vhost_of
from weir.model.registry import Action, TopicRecord
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.interfaces import Clock


class WholeTopicQueues:
    """Fills `api.Queues` over queues that are one log each."""

    def __init__(
        self,
        queues: Queues,
        exchanges: Exchanges,
        registry: Registry,
        broker: Broker,
        *,
        authoriser: Authoriser,
        clock: Clock,
    ) -> None:
        self.logs = queues
        self._exchanges = exchanges
        self.registry = registry
        self.broker = broker
        self.authoriser = authoriser
        self.clock = clock
        self._namespaces: dict[NamespaceName, WholeTopicNamespace] = {}

    async def open(self, namespace: NamespaceName) -> "WholeTopicNamespace":
        queues, exchanges = await self.logs.open(namespace), await self._exchanges.open(namespace)
        found = self._namespaces.get(namespace)
        if found is None or found.queues is not queues:
            found = self._namespaces[namespace] = WholeTopicNamespace(self, namespace, queues, exchanges)
        return found


class WholeTopicNamespace:
    """Fills `api.NamespaceQueues`."""

    def __init__(
        self,
        service: WholeTopicQueues,
        namespace: NamespaceName,
        queues: NamespaceQueues,
        exchanges: NamespaceExchanges,
    ) -> None:
        self._service = service
        self._namespace = namespace
        self.queues = queues
        self._exchanges = exchanges
        self._combined: dict[str, CombinedQueue] = {}

    def find(self, name: str) -> Queue | None:
        found = self.queues.find(name)
        if found is not None:
            return found
        combined = self._combined.get(name)
        if combined is None or combined.alive:
            return combined
        del self._combined[name]
        return None

    async def get(self, role: str, name: str, *, connection: str = "") -> Queue:
        if self.queues.find(name) is None:
            record = await self._record(name)
            if record is not None:
                self._service.authoriser.check_lookup(role, record.name)
                return await self._whole(name, record)
        return await self.queues.get(role, name, connection=connection)

    async def look(self, name: str) -> Queue:
        if self.queues.find(name) is None:
            record = await self._record(name)
            if record is not None:
                return await self._whole(name, record)
        return await self.queues.look(name)

    async def outline(self, name: str) -> QueueOutline | None:
        return await self.queues.outline(name)

    async def declare(self, role: str, wanted: QueueDeclaration, *, connection: str = "") -> Queue:
        record = await self._record(wanted.name) if wanted.name and self.queues.find(wanted.name) is None else None
        if record is None:
            return await self.queues.declare(role, wanted, connection=connection)
        self._check_configure(role, record.name)
        check_equivalent(QueueDeclaration(wanted.name), wanted, vhost_of(self._namespace))
        return await self._whole(wanted.name, record)

    async def delayed(self, exchange: str) -> Queue:
        return await self.queues.delayed(exchange)

    async def forget_delayed(self, exchange: str) -> None:
        await self.queues.forget_delayed(exchange)

    async def delete(
        self, role: str, name: str, *, if_unused: bool = False, if_empty: bool = False, connection: str = ""
    ) -> int:
        record = await self._record(name) if self.queues.find(name) is None else None
        if record is None:
            return await self.queues.delete(
                role, name, if_unused=if_unused, if_empty=if_empty, connection=connection
            )
        self._check_configure(role, record.name)
        counts = await (await self._whole(name, record)).counts()
        said = queue_in_vhost(name, vhost_of(self._namespace))
        if if_empty and counts.ready:
            raise QueueInUseError(f"{said} is not empty")
        if if_unused and counts.consumers:
            raise QueueInUseError(f"{said} in use")
        await self._exchanges.forget_queue(name)
        self._combined.pop(name, None)
        try:
            await self._service.broker.delete(record.name, force=True)
        except TopicNotFoundError:
            return 0
        return counts.ready

    async def release(self, connection: str) -> None:
        await self.queues.release(connection)

    async def names(self) -> Sequence[str]:
        return await self.queues.names()

    @property
    def limits(self) -> QueueLimits:
        return self.queues.limits

    def policies(self) -> Sequence[QueuePolicy]:
        return self.queues.policies()

    async def set_policy(self, role: str, policy: QueuePolicy) -> None:
        await self.queues.set_policy(role, policy)

    async def clear_policy(self, role: str, name: str, *, operator: bool = False) -> None:
        await self.queues.clear_policy(role, name, operator=operator)

    # --- partitions -------------------------------------------------------------------------------------------

    async def _record(self, name: str) -> TopicRecord | None:
        """The record of a topic with partitions that the name is of. For the name of one partition that is looked
        at, too: whoever is asked for it next has it in memory."""
        try:
            topic = TopicName.parse(f"persistent://{self._namespace}/{name}")
        except InvalidNameError:
            return None
        record = await self._service.registry.topics.look(topic)
        if record is None or topic.partition is not None or not record.partitions:
            return None
        return record

    async def _whole(self, name: str, record: TopicRecord) -> Queue:
        found = self._combined.get(name)
        if found is not None and found.alive and len(found.parts) == record.partitions:
            return found
        parts = [await self.queues.look(f"{name}-partition-{at}") for at in range(record.partitions)]
        combined = self._combined[name] = CombinedQueue(QueueDeclaration(name), parts, self._service.clock)
        return combined

    def _check_configure(self, role: str, topic: TopicName) -> None:
        for action in (Action.PRODUCE, Action.CONSUME):
            self._service.authoriser.check(role, action, topic)
