"""RocketMQ consumer groups on this broker: one subscription per group and topic."""

from collections.abc import Callable
from functools import partial

from weir.broker.api.broker import Broker
from weir.broker.api.metadata import Registry
from weir.gateway.rocketmq.group_topic import LOOK_S, Deadlines, GroupTopic
from weir.model.subscriptions import GroupSettings, settings_in
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.interfaces import Clock, Runtime
from weir.runtime.tasks import TaskScope

#: A group closes its subscription to a topic after this time without receives and without invisible messages.
_IDLE_S = 60.0


class ConsumerGroups:
    """Consumer groups of one broker, shared by the clients of all its listeners."""

    def __init__(self, runtime: Runtime, broker: Broker, registry: Registry) -> None:
        self._registry = registry
        self._clock: Clock = runtime.clock
        self._broker = broker
        self.deadlines = Deadlines(runtime.clock)
        self._tasks = TaskScope("rocketmq groups")
        self._found: dict[tuple[TopicName, str], GroupTopic] = {}
        self._sweeping = False
        #: Whether a client is connected to this broker.
        self.client_lives: Callable[[str], bool] = lambda client: True

    def find(self, topic: TopicName, group: str) -> GroupTopic | None:
        return self._found.get((topic, group))

    def of(self, topic: TopicName, group: str) -> GroupTopic:
        found = self._found.get((topic, group))
        if found is None:
            found = GroupTopic(
                self._broker,
                self._clock,
                self._tasks,
                self.deadlines,
                topic=topic,
                group=group,
                settings=partial(self.settings, topic.namespace, group),
                lives=self._lives,
            )
            self._found[(topic, group)] = found
            if not self._sweeping:
                self._sweeping = True
                self._tasks.spawn(self._sweep(), "sweep")
        return found

    async def forget(self, topic: TopicName, group: str) -> None:
        """Remove the group of a deleted topic."""
        found = self._found.pop((topic, group), None)
        if found is not None:
            await found.close()

    def settings(self, namespace: NamespaceName, group: str) -> GroupSettings:
        """The settings of a group, from the namespace's properties or defaults."""
        found = self._registry.namespaces.find(namespace)
        return (None if found is None else settings_in(found.properties, group)) or GroupSettings()

    def _lives(self, client: str) -> bool:
        return self.client_lives(client)

    def client_gone(self, client: str) -> None:
        for found in self._found.values():
            found.free(client)

    async def _sweep(self) -> None:
        while self._found:
            await self._clock.sleep(LOOK_S)
            before = self._clock.monotonic() - _IDLE_S
            for key, found in list(self._found.items()):
                if found.idle_since(before):
                    del self._found[key]
                    await found.close()
                else:
                    await found.look()
        self._sweeping = False

    async def close(self) -> None:
        await self._tasks.close()
        self.deadlines.close()
        found, self._found = list(self._found.values()), {}
        for one in found:
            await one.close()
