"""What the gateway asks of others than the broker: schemas, and lists of topics to watch."""

from collections.abc import Sequence
from typing import Protocol

from weir.broker.api import SchemaData
from weir.model.errors import NotAllowedError
from weir.model.topics import Domain, NamespaceName, TopicName


class Schemas(Protocol):
    """A topic's schemas. A version is opaque bytes."""

    async def get(self, topic: TopicName, version: bytes | None, *, role: str) -> tuple[SchemaData, bytes] | None:
        """A version of the topic's schema, or the latest, with its version; None if there is none."""

    async def add(self, topic: TopicName, schema: SchemaData, *, role: str) -> bytes:
        """The version of the schema, which is added if it is new and policies allow."""


class TopicListChange(Protocol):
    @property
    def added(self) -> Sequence[TopicName]: ...

    @property
    def removed(self) -> Sequence[TopicName]: ...

    @property
    def hash(self) -> str: ...


class TopicListWatch(Protocol):
    """A list of topics, and what changes in it."""

    @property
    def names(self) -> Sequence[TopicName]: ...

    @property
    def hash(self) -> str: ...

    @property
    def is_news(self) -> bool:
        """Whether the list differs from the one whose hash the watcher knew."""

    async def next(self) -> TopicListChange: ...


class TopicLists(Protocol):
    def watch_topics(
        self,
        namespace: NamespaceName,
        *,
        pattern: str | None = None,
        domain: Domain | None = None,
        known_hash: str = "",
    ) -> TopicListWatch: ...


class NoSchemas:
    """For a broker without a schema registry."""

    async def get(self, topic: TopicName, version: bytes | None, *, role: str) -> tuple[SchemaData, bytes] | None:
        return None

    async def add(self, topic: TopicName, schema: SchemaData, *, role: str) -> bytes:
        raise NotAllowedError("this broker keeps no schemas")


class NoTopicLists:
    """For a broker whose lists cannot be watched."""

    def watch_topics(
        self,
        namespace: NamespaceName,
        *,
        pattern: str | None = None,
        domain: Domain | None = None,
        known_hash: str = "",
    ) -> TopicListWatch:
        raise NotAllowedError("lists of topics cannot be watched here")
