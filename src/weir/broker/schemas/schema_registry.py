"""The schema registry: each topic's schemas, by version.

A version is a key of its own, made on condition that nobody made it before, so two brokers never give one number
to two schemas. The store is asked each time: schemas matter when somebody connects, not for each message.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

from weir.broker.api.schemas import SchemaData, version_bytes, version_number
from weir.broker.metadata.registry import Registry
from weir.broker.schemas.compatibility import (
    NO_SCHEMA,
    Definition,
    check_compatible,
    check_valid,
    definition_of,
    same,
)
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.update import Codec, create
from weir.model.errors import (
    IncompatibleSchemaError,
    MetaConflictError,
    MetaUnavailableError,
    SchemaNotFoundError,
    TooManyError,
)
from weir.model.policies import SchemaCompatibility
from weir.model.registry import StoredSchema
from weir.model.topics import TopicName
from weir.runtime.interfaces import Runtime
from weir.wire.registry import decode_schema, encode_schema

SCHEMA: Codec[StoredSchema] = Codec(encode_schema, decode_schema)

_VERSION = Struct(">q")


@dataclass(frozen=True, slots=True)
class SchemaSettings:
    """How many versions a topic may have, and how often to try when brokers register at the same time."""

    max_versions: int = 1_000
    attempts: int = 20


class SchemaRegistry:
    """Schemas of topics. A partition's are its topic's."""

    def __init__(
        self, meta: MetaStore, runtime: Runtime, registry: Registry, settings: SchemaSettings | None = None
    ) -> None:
        """`registry`: for the policies of topics."""
        self._meta = meta
        self._runtime = runtime
        self._registry = registry
        self._settings = settings or SchemaSettings()

    # --- for those who connect ----------------------------------------------------------------------------------

    async def for_producer(self, topic: TopicName, schema: SchemaData | None, *, role: str = "") -> bytes:
        """The version under which the topic has the schema, added if policies allow; empty for no schema.

        IncompatibleSchemaError, also for no schema where the topic has one and requires it; InvalidSchemaError."""
        policies = await self._registry.look_policies(topic)
        if schema is None or schema.type in NO_SCHEMA:
            if policies.schema_required and _live(await self._load(topic)):
                raise IncompatibleSchemaError(f"producers of {topic} need a schema")
            return b""
        strategy = policies.schema_compatibility or SchemaCompatibility.FULL
        return await self._put(
            topic, schema, role=role, strategy=strategy, may_add=bool(policies.allow_schema_auto_update)
        )

    async def for_consumer(self, topic: TopicName, schema: SchemaData | None, *, role: str = "") -> None:
        """Raises if a consumer with this schema could not read what is there. A topic without one gets it."""
        if schema is None or schema.type in NO_SCHEMA:
            return
        policies = await self._registry.look_policies(topic)
        wanted = _definition(schema)
        live = _live(await self._load(topic))
        if not live:
            await self.for_producer(topic, schema, role=role)
            return
        check_valid(wanted)
        strategy = policies.schema_compatibility or SchemaCompatibility.FULL
        if _find(wanted, live) is None:
            check_compatible(wanted, live, _CONSUMER_STRATEGY.get(strategy, strategy))

    # --- for administration -------------------------------------------------------------------------------------

    async def register(
        self, topic: TopicName, schema: SchemaData, *, role: str, strategy: SchemaCompatibility | None = None
    ) -> bytes:
        """The version under which the topic has the schema, added if the strategy (or the topic's) lets it."""
        chosen = (
            strategy
            or (await self._registry.look_policies(topic)).schema_compatibility
            or SchemaCompatibility.FULL
        )
        return await self._put(topic, schema, role=role, strategy=chosen, may_add=True)

    async def check(
        self, topic: TopicName, schema: SchemaData, *, strategy: SchemaCompatibility | None = None
    ) -> None:
        """IncompatibleSchemaError or InvalidSchemaError if `register` would raise it."""
        wanted = _definition(schema)
        check_valid(wanted)
        live = _live(await self._load(topic))
        chosen = (
            strategy
            or (await self._registry.look_policies(topic)).schema_compatibility
            or SchemaCompatibility.FULL
        )
        if _find(wanted, live) is None:
            check_compatible(wanted, live, chosen)

    async def _strategy(self, topic: TopicName) -> SchemaCompatibility:
        return (await self._registry.look_policies(topic)).schema_compatibility or SchemaCompatibility.FULL

    async def get(self, topic: TopicName, version: bytes | None = None) -> StoredSchema:
        """The schema of a version, or the latest; what was deleted is gone. SchemaNotFoundError."""
        live = _live(await self._load(topic))
        if version:
            number = version_number(version)
            schema = next((one for one in live if one.version == number), None)
        else:
            schema = live[-1] if live else None
        if schema is None:
            raise SchemaNotFoundError(f"{topic} has no schema" + (" of this version" if version else ""))
        return schema

    async def find_version(self, topic: TopicName, schema: SchemaData) -> bytes:
        """The version under which the topic has this schema; SchemaNotFoundError."""
        wanted = _definition(schema)
        check_valid(wanted)
        found = _find(wanted, _live(await self._load(topic)))
        if found is None:
            raise SchemaNotFoundError(f"{topic} has no such schema")
        return version_bytes(found.version)

    async def versions(self, topic: TopicName) -> list[StoredSchema]:
        """Every version since the last deletion, the oldest first."""
        return _live(await self._load(topic))

    async def delete(self, topic: TopicName, *, role: str) -> bytes:
        """From now on the topic has no schema, and no version of before is to be had, as in Pulsar. Their numbers
        are not used again: messages name them. The version of the deletion itself. SchemaNotFoundError if there
        is nothing to delete."""
        for _ in range(self._settings.attempts):
            stored = await self._load(topic)
            if not _live(stored):
                raise SchemaNotFoundError(f"{topic} has no schema")
            made = await self._add(topic, stored, Definition("NONE", b"", {}), role=role, deleted=True)
            if made is not None:
                return made
        raise _busy(topic)

    async def purge(self, topic: TopicName) -> None:
        """Forget every version for good: the topic itself goes."""
        # The latest first: whatever is interrupted leaves the versions from 0 on without a hole.
        for item in reversed((await self._meta.list(keys.schemas_of(topic))).items):
            await self._meta.delete(item.key)

    # --- storing ------------------------------------------------------------------------------------------------

    async def _load(self, topic: TopicName) -> list[StoredSchema]:
        return [decode_schema(item.value) for item in (await self._meta.list(keys.schemas_of(topic))).items]

    async def _put(
        self, topic: TopicName, schema: SchemaData, *, role: str, strategy: SchemaCompatibility, may_add: bool
    ) -> bytes:
        wanted = _definition(schema)
        check_valid(wanted)
        for _ in range(self._settings.attempts):
            stored = await self._load(topic)
            live = _live(stored)
            found = _find(wanted, live)
            if found is not None:
                return version_bytes(found.version)
            if not may_add:
                raise IncompatibleSchemaError(
                    f"{topic} does not have this schema, and clients may not add one",
                    hint="register it through the admin API, or allow automatic updates",
                )
            check_compatible(wanted, live, strategy)
            made = await self._add(topic, stored, wanted, role=role)
            if made is not None:
                return made
        raise _busy(topic)

    async def _add(
        self,
        topic: TopicName,
        stored: Sequence[StoredSchema],
        wanted: Definition,
        *,
        role: str,
        deleted: bool = False,
    ) -> bytes | None:
        """Store the next version; None if another broker was faster."""
        if len(stored) >= self._settings.max_versions and not deleted:
            raise TooManyError(f"{topic} has as many schema versions as it may")
        version = stored[-1].version + 1 if stored else 0
        schema = StoredSchema(
            version, wanted.type, wanted.data, wanted.properties, role, self._runtime.clock.wall_ms(), deleted
        )
        try:
            await create(self._meta, keys.schema(topic, version), SCHEMA, schema, runtime=self._runtime)
        except MetaConflictError:
            return None
        return version_bytes(version)


#: How a consumer's schema is checked under a topic's strategy, where it differs: it need only read what is there.
_CONSUMER_STRATEGY = {
    SchemaCompatibility.FORWARD: SchemaCompatibility.BACKWARD,
    SchemaCompatibility.FORWARD_TRANSITIVE: SchemaCompatibility.BACKWARD,
    SchemaCompatibility.FULL: SchemaCompatibility.BACKWARD,
}


def _definition(schema: SchemaData) -> Definition:
    return Definition(schema.type, bytes(schema.data), dict(schema.properties))


def _live(stored: list[StoredSchema]) -> list[StoredSchema]:
    """Those since the last deletion."""
    last = max((place for place, schema in enumerate(stored) if schema.deleted), default=-1)
    return stored[last + 1 :]


def _find(wanted: Definition, live: Sequence[StoredSchema]) -> StoredSchema | None:
    """The version that says the same; the latest if there are several."""
    exact = [s for s in live if s.type == wanted.type and s.data == wanted.data and same(wanted, definition_of(s))]
    if exact:
        return exact[-1]
    return next((schema for schema in reversed(live) if same(wanted, definition_of(schema))), None)


def _busy(topic: TopicName) -> MetaUnavailableError:
    return MetaUnavailableError(f"too many register schemas of {topic} at the same time", hint="try again")
