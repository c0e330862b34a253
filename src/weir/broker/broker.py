"""The broker: topics, loaded when they are first asked for, each once."""

import asyncio
import logging

from weir.broker.api import Identity, Owner
from weir.broker.context import BrokerContext
from weir.broker.maintenance import Maintenance
from weir.broker.opening import AnyTopic, open_topic
from weir.broker.ports import Authenticator, Claim, Ownership, Registry
from weir.model.errors import NotAuthenticatedError, TopicClosedError, TopicNotFoundError, WeirError
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.log_context import log_about
from weir.runtime.tasks import TaskScope

log = logging.getLogger(__name__)

#: Topics that are closed at the same time when the broker goes down.
_CLOSED_AT_ONCE = 64


class Broker:
    """Fills `api.Broker`."""

    def __init__(
        self,
        context: BrokerContext,
        registry: Registry,
        ownership: Ownership,
        authenticator: Authenticator | None = None,
    ) -> None:
        self._context = context
        self._registry = registry
        self._ownership = ownership
        self._topics: dict[TopicName, asyncio.Task[AnyTopic]] = {}
        self._claims: dict[TopicName, Claim] = {}
        #: Topics that are being let go of: loading one again waits, lest its new claim is let go of with the old.
        self._ending: dict[TopicName, asyncio.Future[None]] = {}
        self._tasks = TaskScope("broker")
        self._closing = False
        self._authenticator = authenticator
        self._maintenance = Maintenance(context, lambda: self.loaded)

    def start(self) -> None:
        """Look after topics from now on: retention, expiry, quotas, changes of policies."""
        self._tasks.spawn(self._maintenance.run(), "maintenance")
        self._tasks.spawn(self._sweep(), "sweep")

    @property
    def loaded(self) -> list[AnyTopic]:
        """The topics that are served now."""
        return [
            task.result()
            for task in self._topics.values()
            if task.done() and not task.cancelled() and task.exception() is None
        ]

    async def topic(self, name: TopicName, *, role: str, create: bool = True) -> AnyTopic:
        self._context.guard.check(role, name, None)
        return await self.load(name, create=create)

    async def load(self, name: TopicName, *, create: bool = True) -> AnyTopic:
        """The topic, whoever asks; callers at the same time share one load."""
        while True:
            if self._closing:
                raise TopicClosedError("the broker is going down")
            loading = self._topics.get(name)
            if loading is None:
                loading = asyncio.get_running_loop().create_task(self._load(name, create), name=f"load {name}")
                self._topics[name] = loading
                loading.add_done_callback(lambda done, name=name: self._loaded(name, done))  # type: ignore[misc]
            # One caller that gives up must not take the others' load with it.
            topic = await asyncio.shield(loading)
            claim = self._claims.get(name)
            if topic.alive and (claim is None or claim.held):
                await self._apply_policies(topic)
                return topic
            await self._forget(name, loading)

    async def _load(self, name: TopicName, create: bool) -> AnyTopic:
        log_about(topic=str(name))  # not the connection that happened to ask first
        while (ending := self._ending.get(name)) is not None:
            await asyncio.wait([ending])
        record = await self._registry.ensure_topic(name, create=create)
        if not record.holds(name) or (record.partitions and name.partition is None):
            raise TopicNotFoundError(f"{name} holds no messages: {record.name} has {record.partitions} partitions")
        self._claims[name] = await self._ownership.own(name)
        try:
            topic = await open_topic(self._context, name, self._registry.policies(name))
        except BaseException:
            await self._ownership.release(name)
            raise
        return topic

    def _loaded(self, name: TopicName, done: "asyncio.Task[AnyTopic]") -> None:
        if done.cancelled() or done.exception() is not None:
            if self._topics.get(name) is done:
                del self._topics[name]
        else:
            done.result().on_death(lambda: self._died(name, done))

    def _died(self, name: TopicName, loaded: "asyncio.Task[AnyTopic]") -> None:
        """Another broker has it: let go of it."""
        if self._topics.get(name) is loaded:
            self._tasks.spawn(self._forget(name, loaded), f"forget {name}")

    async def _sweep(self) -> None:
        """Apply new policies, and let go of what was lost with a lease. One task for all topics: one for each
        would cost more memory than the topic."""
        while True:
            await self._context.runtime.clock.sleep(self._context.settings.sweep_s)
            for topic in self.loaded:
                claim = self._claims.get(topic.name)
                if claim is not None and not claim.held:
                    await self.unload(topic.name, "this broker lost the topic")
                else:
                    await self._apply_policies(topic)

    async def _apply_policies(self, topic: AnyTopic) -> None:
        policies = self._registry.policies(topic.name)
        if policies is not topic.policies and policies != topic.policies:
            try:
                await topic.apply(policies)
            except WeirError as failed:
                log.warning("the policies of %s could not be applied yet: %s", topic.name, failed)

    async def _forget(self, name: TopicName, loaded: "asyncio.Task[AnyTopic]") -> None:
        if self._topics.get(name) is loaded:
            del self._topics[name]
            await self._end(loaded.result(), "the topic moved to another broker")

    async def unload(self, name: TopicName, reason: str = "the topic is unloaded") -> None:
        """Let go of a topic; the next who asks loads it again, here or elsewhere."""
        loading = self._topics.pop(name, None)
        if loading is not None:
            await self._end(await asyncio.shield(loading), reason)

    async def _end(self, topic: AnyTopic, reason: str) -> None:
        ending = self._ending[topic.name] = asyncio.get_running_loop().create_future()
        try:
            await topic.close(reason)
        except WeirError as failed:
            log.warning("%s did not close cleanly: %s", topic.name, failed)
        finally:
            self._claims.pop(topic.name, None)
            try:
                await self._ownership.release(topic.name)
            finally:
                ending.set_result(None)
                if self._ending.get(topic.name) is ending:
                    del self._ending[topic.name]

    async def delete(self, name: TopicName, *, force: bool = False) -> None:
        """End a topic with all of its partitions and everything in them. Those that are connected are a reason not
        to, unless forced (NotAllowedError)."""
        record = await self._registry.ensure_topic(name, create=False)
        parts = [await self.load(part, create=False) for part in record.parts()]
        for topic in parts:
            if not force:
                topic.check_unused()
        await self._registry.delete_topic(record.name)
        for topic in parts:
            self._topics.pop(topic.name, None)
            await topic.delete()
            await self._ownership.release(topic.name)

    async def partitions(self, name: TopicName, *, role: str, create: bool = True) -> int:
        self._context.guard.check(role, name, None)
        if name.partition is not None:
            return 0  # a partition has no partitions
        return (await self._registry.ensure_topic(name, create=create)).partitions

    async def owner(self, name: TopicName, *, role: str) -> Owner:
        self._context.guard.check(role, name, None)
        return await self._ownership.owner(name)

    async def topics(self, namespace: str, *, role: str, pattern: str | None = None) -> list[TopicName]:
        name = NamespaceName.parse(namespace)
        self._context.guard.check_listing(role, name)
        return self._registry.topic_names(name, pattern=pattern)

    async def authenticate(self, method: str, credentials: bytes) -> Identity:
        if self._authenticator is None:
            raise NotAuthenticatedError(f"authentication method {method!r} is not known here")
        return self._authenticator.authenticate(method, credentials)

    async def close(self) -> None:
        """Let go of every topic."""
        self._closing = True
        names = list(self._topics)
        for first in range(0, len(names), _CLOSED_AT_ONCE):
            await asyncio.gather(*map(self._unload_quietly, names[first : first + _CLOSED_AT_ONCE]))
        await self._tasks.close()

    async def _unload_quietly(self, name: TopicName) -> None:
        try:
            await self.unload(name, "the broker is going down")
        except WeirError as failed:
            log.warning("%s was not unloaded: %s", name, failed)
