"""Schemas of topics, as clients and administrators ask for them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Protocol

from weir.model.errors import SchemaNotFoundError
from weir.model.policies import SchemaCompatibility
from weir.model.registry import StoredSchema
from weir.model.topics import TopicName

_VERSION = Struct(">q")


@dataclass(frozen=True, slots=True)
class SchemaData:
    """A schema as a client sends it: `type` in Pulsar's words (AVRO, JSON, STRING, ...)."""

    type: str
    data: bytes
    name: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


def version_bytes(version: int) -> bytes:
    """A version as Pulsar sends it."""
    return _VERSION.pack(version)


def version_number(version: bytes) -> int:
    """SchemaNotFoundError if these bytes are no version."""
    if len(version) != _VERSION.size:
        raise SchemaNotFoundError(f"{version[:16].hex()!r} is not a schema version")
    number: int = _VERSION.unpack(version)[0]
    return number


class Schemas(Protocol):
    """A topic's schemas, as clients ask for them. A version is opaque bytes."""

    async def get(self, topic: TopicName, version: bytes | None, *, role: str) -> tuple[SchemaData, bytes] | None:
        """A version of the topic's schema, or the latest, with its version; None if there is none."""

    async def add(self, topic: TopicName, schema: SchemaData | None, *, role: str) -> bytes:
        """The version of the schema, which is added if it is new and policies allow; empty for none (bytes)."""


class SchemaVersions(Protocol):
    """The versions of topics' schemas. A partition's are its topic's."""

    async def register(
        self, topic: TopicName, schema: SchemaData, *, role: str, strategy: SchemaCompatibility | None = None
    ) -> bytes:
        """The version under which the topic has the schema, added if the strategy (or the topic's) lets it."""

    async def check(
        self, topic: TopicName, schema: SchemaData, *, strategy: SchemaCompatibility | None = None
    ) -> None:
        """IncompatibleSchemaError or InvalidSchemaError if `register` would raise it."""

    async def get(self, topic: TopicName, version: bytes | None = None) -> StoredSchema:
        """The schema of a version, also one from before a deletion; or the latest. SchemaNotFoundError."""

    async def find_version(self, topic: TopicName, schema: SchemaData) -> bytes:
        """The version under which the topic has this schema; SchemaNotFoundError."""

    async def versions(self, topic: TopicName) -> list[StoredSchema]:
        """Every version since the last deletion, the oldest first."""

    async def delete(self, topic: TopicName, *, role: str) -> bytes:
        """From now on the topic has no schema; old versions can still be asked for by number, as messages name
        them. The version of the deletion itself. SchemaNotFoundError if there is nothing to delete."""
