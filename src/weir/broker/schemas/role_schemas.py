"""The schema registry as the gateway asks it: with the role of whoever asks."""

from weir.broker.api.schemas import SchemaData, version_bytes
from weir.broker.schemas.schema_registry import SchemaRegistry
from weir.broker.security.authorization import TopicGuard
from weir.model.errors import SchemaNotFoundError
from weir.model.registry import Action
from weir.model.topics import TopicName


class GuardedSchemas:
    """Fills `api.Schemas`."""

    def __init__(self, schemas: SchemaRegistry, guard: TopicGuard) -> None:
        self._schemas = schemas
        self._guard = guard

    @property
    def guard(self) -> TopicGuard:
        return self._guard

    async def get(self, topic: TopicName, version: bytes | None, *, role: str) -> tuple[SchemaData, bytes] | None:
        """Whoever may find the topic may see its schemas."""
        self._guard.check(role, topic, None)
        try:
            found = await self._schemas.get(topic, version)
        except SchemaNotFoundError:
            return None
        return SchemaData(found.type, found.data, properties=found.properties), version_bytes(found.version)

    async def add(self, topic: TopicName, schema: SchemaData | None, *, role: str) -> bytes:
        """Whoever may produce may bring a new version, as far as policies allow."""
        self._guard.check(role, topic, Action.PRODUCE)
        return await self._schemas.for_producer(topic, schema, role=role)
