"""The queues of every namespace that somebody uses on this broker."""

from typing import Protocol

from weir.broker.api import Exchanges, Queues
from weir.broker.broker import Broker
from weir.broker.context import BrokerContext
from weir.broker.queues.namespace import LocalQueues
from weir.broker.queues.namespace_policies import PolicedExchanges
from weir.broker.queues.watch import QueueWatch
from weir.broker.registry.registry import Registry
from weir.model.errors import NamespaceNotFoundError, NotAuthorisedError
from weir.model.queues import queue_of_topic
from weir.model.registry import Action
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.tasks import TaskScope


class PolicedExchangeService(Protocol):
    async def open(self, namespace: NamespaceName) -> PolicedExchanges:
        """NamespaceNotFoundError."""


class QueueService:
    """Fills `api.Queues`. Namespaces stay open once they are: their queues in memory live here."""

    def __init__(
        self, context: BrokerContext, registry: Registry, broker: Broker, exchanges: PolicedExchangeService
    ) -> None:
        self._context = context
        self._registry = registry
        self._broker = broker
        self._exchanges = exchanges
        self._tasks = TaskScope("queues")
        self._namespaces: dict[NamespaceName, LocalQueues] = {}
        #: Where dead letters find their queues.
        self._everywhere: Queues = self
        context.letters.lead_to(self)

    def lead_to(self, everywhere: Queues) -> None:
        """All queues that dead letters may go to: those of other brokers, and of topics with partitions, too."""
        self._everywhere = everywhere

    def start(self) -> None:
        """Send away who may not consume any more, and open what has something to do by itself, from now on."""
        self._tasks.spawn(self._revoke(), "revoking")
        watch = QueueWatch(self._registry, self._broker, self.open, self._context.runtime.clock)
        self._tasks.spawn(watch.run(), "watch")

    async def _revoke(self) -> None:
        """Consumers of queues in memory whose role lost its grant are sent away; topics' are by the broker."""
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
        """What a namespace that is gone had in memory goes with it."""
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
        """What other brokers say of a namespace: topics are told of it as of all policies, the rest is here."""
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
    """A queue's topic is deleted, by a client of another protocol perhaps: its bindings go with it."""
    try:
        found = await exchanges.open(topic.namespace)
    except NamespaceNotFoundError:
        return
    await found.forget_queue(queue_of_topic(topic))
