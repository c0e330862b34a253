"""Queues of a cluster: local queues of this broker, and remote queues of other brokers.

The owner of a topic also serves its durable queue. The broker that received the declaration of a queue in memory
serves it; if no topic has the name of a queue, this broker sends a request to the other brokers.

Direct replies need no queue: the name of a receiver contains the id of its broker.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from weir.broker.api.broker import Owner
from weir.broker.api.queues import Queue, QueueOutline, ReplyReceiver
from weir.broker.broker import Broker
from weir.broker.coordination.remote_partition_ops import PASSING
from weir.broker.metadata.registry import Registry
from weir.broker.peers.peer_calls import PeerCalls, PeerHandlers
from weir.broker.queues.namespace_queues import LocalQueues
from weir.broker.queues.queue_arguments import check_equivalent
from weir.broker.queues.queue_policies import declaration_of
from weir.broker.queues.queue_service import QueueService
from weir.broker.queues.remote_queue import RelayLink, RemoteQueue
from weir.model.errors import NotOwnerError, QueueLockedError, QueueNotFoundError, WeirError
from weir.model.ids import Buffer
from weir.model.queues import QueueDeclaration, QueueLimits, QueuePolicy, delay_queue, vhost_of
from weir.model.topics import NamespaceName
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.wire.exchanges import decode_declaration, encode_declaration
from weir.wire.peer.queue_calls import DeliverReply, QueueAt, QueueFound, QueueIsHere, ReplyTaken

#: Attempts to find a queue that moved or is unreachable, with pauses between; then the caller gets the error.
_ATTEMPTS = 30
_PAUSE_S = 0.2
#: Timeout of a request for a queue in memory: a broker that does not answer counts as having none.
_ASK_S = 2.0


class RoutedQueues:
    """Implements `api.Queues`, with `local` for the queues of this broker."""

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
        #: Differs after each restart of this broker.
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
    """Implements `api.NamespaceQueues`."""

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
        """Find the queue, with retries: the owner may change meanwhile."""
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
        except NotOwnerError:  # the topic now has the declaration
            return await self.get(role, wanted.name, connection=connection)

    async def delayed(self, exchange: str) -> Queue:
        name = delay_queue(exchange).name
        try:
            return await self._reach(name, lambda: self.local.delayed(exchange))
        except QueueNotFoundError:  # a concurrent delete removed it: create it again
            return await self._reach(name, lambda: self.local.delayed(exchange))

    async def forget_delayed(self, exchange: str) -> None:
        try:
            queue = await self.look(delay_queue(exchange).name)
        except QueueNotFoundError:
            return
        if isinstance(queue, RemoteQueue):
            await queue.purge()  # no exchange will route the delayed messages
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
        """A durable queue of another broker; None while its owner is unknown."""
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
        """A queue in the memory of another broker. A broker that does not answer counts as having none."""
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


_SECRET_BITS = 128


class ReplyReceivers:
    """Implements `api.DirectReplies`: receivers of this broker, and through `peers` those of other brokers."""

    def __init__(self, broker_id: str, runtime: Runtime, peers: PeerCalls | None, handlers: PeerHandlers) -> None:
        self._broker_id = broker_id
        self._rng = runtime.rng
        self._peers = peers
        self._receivers: dict[str, ReplyReceiver] = {}
        handlers.on(DeliverReply, self._answer)

    def expect(self, receiver: ReplyReceiver) -> str:
        name = f"{self._rng.getrandbits(_SECRET_BITS):032x}.{self._broker_id}"
        self._receivers[name] = receiver
        return name

    def forget(self, name: str) -> None:
        self._receivers.pop(name, None)

    async def expected(self, name: str) -> bool:
        return await self.deliver(name, ())

    async def deliver(self, name: str, parts: Sequence[Buffer]) -> bool:
        owner = name.partition(".")[2]
        if owner == self._broker_id or self._peers is None or not owner:
            return self._give(name, parts)
        try:
            answer = await self._peers.ask(owner, DeliverReply(name, tuple(map(bytes, parts))))
        except WeirError:  # the broker is down, and its receivers with it
            return False
        return answer.taken

    def _give(self, name: str, parts: Sequence[Buffer]) -> bool:
        receiver = self._receivers.get(name)
        if receiver is not None and parts:
            receiver.take_reply(parts)
        return receiver is not None

    async def _answer(self, request: DeliverReply) -> ReplyTaken:
        return ReplyTaken(self._give(request.name, request.parts))
