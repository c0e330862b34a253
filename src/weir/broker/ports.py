"""What topics and the broker ask of the registry, the guards, the schemas and ownership, as small interfaces.

Each has a form that allows everything and remembers nothing but names, for a broker on its own and for tests.
"""

import asyncio
from enum import Enum
from typing import Protocol

from weir.broker.api import Owner, SchemaData
from weir.model.batch import Batch, HeldId
from weir.model.policies import DEFAULT_POLICIES, Policies
from weir.model.topics import NamespaceName, TopicName


class Action(Enum):
    """What a role may be allowed to do with a topic."""

    PRODUCE = "produce"
    CONSUME = "consume"
    LOOKUP = "lookup"


class Guard(Protocol):
    def check(self, role: str, topic: TopicName, action: Action, *, subscription: str | None = None) -> None:
        """NotAuthorisedError if the role may not."""


class Schemas(Protocol):
    async def for_producer(self, topic: TopicName, schema: SchemaData | None) -> bytes:
        """The version under which the topic knows the schema, which is added if policies allow."""

    async def for_consumer(self, topic: TopicName, schema: SchemaData | None) -> None:
        """Raises if a consumer with this schema could not read what is there."""


class Holding(Protocol):
    """Where messages wait that may not be seen yet."""

    def hold(self, batch: Batch, deliver_at_ms: int) -> "asyncio.Future[HeldId]": ...

    async def close(self) -> None: ...


class Registry(Protocol):
    def policies(self, topic: TopicName) -> Policies:
        """What holds for the topic, all levels together."""

    async def admit(self, topic: TopicName, *, create: bool) -> None:
        """The topic exists, or comes to be if `create` and policies allow; else TopicNotFoundError."""

    def partitions(self, topic: TopicName) -> int | None:
        """How many partitions the topic has: 0 if it has none; None if there is no such topic."""

    async def admit_partitioned(self, topic: TopicName, *, create: bool) -> int: ...

    def topics(self, namespace: NamespaceName) -> list[TopicName]: ...

    async def changed(self) -> None:
        """Wait until policies may have changed."""


class Ownership(Protocol):
    async def acquire(self, topic: TopicName) -> None:
        """Make this broker the one that serves the topic; NotOwnerError if another does."""

    async def release(self, topic: TopicName) -> None: ...

    async def owner(self, topic: TopicName) -> Owner: ...


class OpenGuard:
    """Everyone may do everything."""

    def check(self, role: str, topic: TopicName, action: Action, *, subscription: str | None = None) -> None:
        pass


class NoSchemas:
    async def for_producer(self, topic: TopicName, schema: SchemaData | None) -> bytes:
        return b""

    async def for_consumer(self, topic: TopicName, schema: SchemaData | None) -> None:
        pass


class SoleOwner:
    """This broker serves every topic."""

    def __init__(self, pulsar_url: str = "", http_url: str = "") -> None:
        self._owner = Owner(True, pulsar_url, http_url)

    async def acquire(self, topic: TopicName) -> None:
        pass

    async def release(self, topic: TopicName) -> None:
        pass

    async def owner(self, topic: TopicName) -> Owner:
        return self._owner


class PlainRegistry:
    """Topics come to be when they are asked for; one set of policies for all."""

    def __init__(self, policies: Policies | None = None) -> None:
        self._policies = (policies or Policies()).over(DEFAULT_POLICIES)
        self._topics: dict[TopicName, None] = {}
        self._change: asyncio.Event = asyncio.Event()

    def set(self, policies: Policies) -> None:
        """Other policies from now on."""
        self._policies = policies.over(self._policies)
        self._change.set()

    def policies(self, topic: TopicName) -> Policies:
        return self._policies

    async def admit(self, topic: TopicName, *, create: bool) -> None:
        self._topics[topic] = None

    def partitions(self, topic: TopicName) -> int | None:
        return 0 if topic in self._topics else None

    async def admit_partitioned(self, topic: TopicName, *, create: bool) -> int:
        return 0

    def topics(self, namespace: NamespaceName) -> list[TopicName]:
        return [topic for topic in self._topics if topic.namespace == namespace]

    async def changed(self) -> None:
        self._change.clear()
        await self._change.wait()
