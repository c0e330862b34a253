"""Queues of a cluster: this broker's own, and those of others by calls to them.

A durable queue is where its topic is. A queue in memory is where it was declared; others are asked for it when
there is no topic of its name.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from weir.broker.api import Owner, Queue, QueueOutline
from weir.broker.broker import Broker
from weir.broker.parts.routed import PASSING
from weir.broker.peers.calls import PeerCalls, PeerHandlers
from weir.broker.queues.declared import declaration_of
from weir.broker.queues.namespace import LocalQueues
from weir.broker.queues.relay import RelayLink, RemoteQueue
from weir.broker.queues.rules import check_equivalent
from weir.broker.queues.service import QueueService
from weir.broker.registry.registry import Registry
from weir.model.errors import NotOwnerError, QueueLockedError, QueueNotFoundError, WeirError
from weir.model.queues import QueueDeclaration, QueueLimits, QueuePolicy, delay_queue, vhost_of
from weir.model.topics import NamespaceName
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.wire.peer.queues import QueueAt, QueueFound, QueueIsHere
from weir.wire.queues import decode_declaration, encode_declaration

#: Who moved, or is out of reach, is looked for so often, with pauses; then whoever asked is told.
_ATTEMPTS = 30
_PAUSE_S = 0.2
#: How long another broker has to say whether a queue is in its memory: one that is silent has none for now.
_ASK_S = 2.0


class RoutedQueues:
    """Fills `api.Queues`, with `local` for what this broker has."""

    def __init__(
        self,
        local: QueueService,
        registry: Registry,
        broker: Broker,
        peers: PeerCalls,
        handlers: PeerHandlers,
        *,
        runtime: Runtime,
        broker_id: str,
    ) -> None:
        self.local = local
        self.registry = registry
        self.broker = broker
        self.peers = peers
        self.clock = runtime.clock
        self.broker_id = broker_id
        #: Another one for each life of this broker.
        self._asker = f"{broker_id}/{runtime.rng.getrandbits(48):012x}"
        self._links: dict[str, RelayLink] = {}
        self._namespaces: dict[NamespaceName, RoutedNamespace] = {}
        self._tasks = TaskScope("queues of other brokers")
        handlers.on(QueueIsHere, self._is_here)

    async def open(self, namespace: NamespaceName) -> "RoutedNamespace":
        local = await self.local.open(namespace)
        found = self._namespaces.get(namespace)
        if found is None or found.local is not local:
            found = self._namespaces[namespace] = RoutedNamespace(self, namespace, local)
        return found

    async def close(self) -> None:
        await self._tasks.close()

    def link(self, broker_id: str) -> RelayLink:
        found = self._links.get(broker_id)
        if found is None:
            found = self._links[broker_id] = RelayLink(self.peers, self._asker, broker_id, self._tasks)
        return found

    async def _is_here(self, request: QueueIsHere) -> QueueFound:
        queues = await self.local.open(request.namespace)
        queue = queues.in_memory(request.name)
        if queue is None:
            return QueueFound()
        return QueueFound(encode_declaration(queue.declaration), queue.connection)


class RoutedNamespace:
    """Fills `api.NamespaceQueues`."""

    def __init__(self, cluster: RoutedQueues, namespace: NamespaceName, local: LocalQueues) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self.local = local
        self._remote: dict[str, RemoteQueue] = {}

    def find(self, name: str) -> Queue | None:
        found = self.local.find(name)
        if found is not None:
            return found
        remote = self._remote.get(name)
        if remote is None or remote.alive:
            return remote
        del self._remote[name]
        return None

    async def get(self, role: str, name: str, *, connection: str = "") -> Queue:
        found = await self._reach(name, lambda: self.local.get(role, name, connection=connection))
        self._check_owner(found, connection)
        return found

    def _check_owner(self, queue: Queue, connection: str) -> None:
        if isinstance(queue, RemoteQueue) and queue.connection and queue.connection != connection:
            name, vhost = queue.declaration.name, vhost_of(self._namespace)
            raise QueueLockedError(f"cannot obtain exclusive access to locked queue '{name}' in vhost '{vhost}'")

    async def look(self, name: str) -> Queue:
        return await self._reach(name, lambda: self.local.look(name))

    async def outline(self, name: str) -> QueueOutline | None:
        return await self.local.outline(name)

    async def _reach(self, name: str, here: Callable[[], Awaitable[Queue]]) -> Queue:
        """Who is asked may have lost it just now."""
        for attempt in range(_ATTEMPTS):
            try:
                return await here()
            except NotOwnerError:
                found = await self._elsewhere(name)
                if found is not None:
                    return found
            except PASSING:
                if attempt == _ATTEMPTS - 1:
                    raise
            except QueueNotFoundError:
                there = await self._in_memory_elsewhere(name)
                if there is None:
                    raise
                return there
            await self._cluster.clock.sleep(_PAUSE_S)
        raise NotOwnerError(f"queue {name[:80]!r} is on its way from one broker to another")

    async def declare(self, role: str, wanted: QueueDeclaration, *, connection: str = "") -> Queue:
        if wanted.in_memory and wanted.name and self.local.find(wanted.name) is None:
            there = await self._in_memory_elsewhere(wanted.name)
            if there is not None:
                found = await self.get(role, wanted.name, connection=connection)
                check_equivalent(there.declaration, wanted, vhost_of(self._namespace))
                return found
        try:
            return await self.local.declare(role, wanted, connection=connection)
        except NotOwnerError:  # by now it is declared
            return await self.get(role, wanted.name, connection=connection)

    async def delayed(self, exchange: str) -> Queue:
        name = delay_queue(exchange).name
        try:
            return await self._reach(name, lambda: self.local.delayed(exchange))
        except QueueNotFoundError:  # deleted just now: it is made again
            return await self._reach(name, lambda: self.local.delayed(exchange))

    async def forget_delayed(self, exchange: str) -> None:
        try:
            queue = await self.look(delay_queue(exchange).name)
        except QueueNotFoundError:
            return
        if isinstance(queue, RemoteQueue):
            await queue.purge()  # what waits for its time goes where no exchange takes it
        else:
            await self.local.forget_delayed(exchange)

    async def delete(
        self, role: str, name: str, *, if_unused: bool = False, if_empty: bool = False, connection: str = ""
    ) -> int:
        try:
            queue = await self.look(name)
        except QueueNotFoundError:
            return 0
        self._check_owner(queue, connection)
        if isinstance(queue, RemoteQueue):
            self._remote.pop(name, None)
            queue.alive = False
            return await queue.delete(role, if_unused=if_unused, if_empty=if_empty)
        return await self.local.delete(role, name, if_unused=if_unused, if_empty=if_empty, connection=connection)

    async def release(self, connection: str) -> None:
        await self.local.release(connection)

    async def names(self) -> Sequence[str]:
        return await self.local.names()

    @property
    def limits(self) -> QueueLimits:
        return self.local.limits

    def policies(self) -> Sequence[QueuePolicy]:
        return self.local.policies()

    async def set_policy(self, role: str, policy: QueuePolicy) -> None:
        await self.local.set_policy(role, policy)

    async def clear_policy(self, role: str, name: str, *, operator: bool = False) -> None:
        await self.local.clear_policy(role, name, operator=operator)

    # --- elsewhere ------------------------------------------------------------------------------------------

    async def _elsewhere(self, name: str) -> Queue | None:
        """A durable queue that another broker has; None while nobody is known to have it."""
        cluster = self._cluster
        topic = self.local.topic_of(name)
        record = await cluster.registry.topics.look(topic)
        if record is None:
            raise QueueNotFoundError(f"no queue {name[:80]!r}")
        owner: Owner = cluster.broker.owner_now(topic)
        if owner.here or not owner.broker_id:
            return None
        there = self._remote.get(name)
        if there is not None and there.alive and there.owner == owner.broker_id:
            return there
        declaration = declaration_of(record, topic) or QueueDeclaration(name)
        remote = self._remote[name] = RemoteQueue(
            cluster.link(owner.broker_id),
            QueueAt(self._namespace, name),
            declaration,
            self.local,
        )
        return remote

    async def _in_memory_elsewhere(self, name: str) -> Queue | None:
        """A queue in the memory of another broker. One that does not answer has none."""
        cluster = self._cluster
        others = [info.broker_id for info in cluster.broker.brokers() if info.broker_id != cluster.broker_id]
        if not others:
            return None
        question = QueueIsHere(self._namespace, name)
        answers = await asyncio.gather(
            *(cluster.peers.ask(other, question, timeout_s=_ASK_S) for other in others), return_exceptions=True
        )
        for other, answer in zip(others, answers, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, WeirError):
                raise answer
            if not isinstance(answer, QueueFound) or not answer.declared:
                continue
            declaration = decode_declaration(name, answer.declared)
            remote = self._remote[name] = RemoteQueue(
                cluster.link(other),
                QueueAt(self._namespace, name),
                declaration,
                self.local,
                connection=answer.connection,
            )
            return remote
        return None
