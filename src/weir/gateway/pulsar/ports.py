"""Stand-ins for what a broker may lack: schemas, and lists of topics to watch."""

from weir.broker.api import SchemaData, TopicListWatch
from weir.model.errors import NotAllowedError
from weir.model.topics import Domain, NamespaceName, TopicName


class NoSchemas:
    """For a broker without a schema registry."""

    async def get(self, topic: TopicName, version: bytes | None, *, role: str) -> tuple[SchemaData, bytes] | None:
        return None

    async def add(self, topic: TopicName, schema: SchemaData | None, *, role: str) -> bytes:
        raise NotAllowedError("this broker keeps no schemas")


class NoTopicLists:
    """For a broker whose lists cannot be watched."""

    async def watch_topics(
        self,
        namespace: NamespaceName,
        *,
        role: str,
        pattern: str | None = None,
        domain: Domain | None = None,
        known_hash: str = "",
    ) -> TopicListWatch:
        raise NotAllowedError("lists of topics cannot be watched here")
