"""The queues of a namespace that are open on one broker, and what policies and limits say of them now."""

from collections.abc import Sequence

from weir.broker.context import BrokerContext
from weir.broker.queues.durable import DurableQueue
from weir.broker.queues.limits import limits_of
from weir.broker.queues.local import LocalQueue
from weir.broker.queues.memory import MemoryQueue
from weir.broker.queues.namespace_policies import NamespacePolicies, PolicedExchanges
from weir.broker.queues.policies import PolicyTable
from weir.broker.registry.registry import Registry
from weir.model.queues import QueueDeclaration, QueueLimits, QueuePolicy, QueueRules, vhost_of
from weir.model.topics import NamespaceName


class OpenQueues:
    """Knows queues by their names; whoever makes and ends them is built on it."""

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
        """The one of this name that is in this broker's memory."""
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
        """Other brokers follow the registry."""
        await self._policies.set(role, policy)
        self.apply()

    async def clear_policy(self, role: str, name: str, *, operator: bool = False) -> None:
        await self._policies.clear(role, name, operator=operator)
        self.apply()

    def apply_changed(self) -> None:
        if self._policies.table is not self._applied:
            self.apply()

    def apply(self) -> None:
        """Policies may have changed: for what is open here, at once."""
        table = self._applied = self._policies.table
        self._exchanges.police(table.alternate_of)
        for queue in list(self._in_memory.values()):
            queue.apply()
        for durable in list(self._open.values()):
            rules = self._context.queue_rules.of(durable.topic.name)
            if durable.alive and rules != durable.topic.queue_rules:
                durable.topic.apply_queue(rules)
