"""Schemas of topics, for clients and administrators."""

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
    """A version in Pulsar's encoding."""
    return _VERSION.pack(version)


def version_number(version: bytes) -> int:
    """SchemaNotFoundError if these bytes are no version."""
    if len(version) != _VERSION.size:
        raise SchemaNotFoundError(f"{version[:16].hex()!r} is not a schema version")
    number: int = _VERSION.unpack(version)[0]
    return number


class Schemas(Protocol):
    """The schemas of topics, for clients. A version is opaque bytes."""

    async def get(self, topic: TopicName, version: bytes | None, *, role: str) -> tuple[SchemaData, bytes] | None:
        """A version of the topic's schema, or the latest, with its version; None if it does not exist."""

    async def add(self, topic: TopicName, schema: SchemaData | None, *, role: str) -> bytes:
        """Add the schema if it is new and the policies permit it; return its version (empty without a schema)."""


class SchemaVersions(Protocol):
    """The schema versions of topics. A partition has those of its partitioned topic."""

    async def register(
        self, topic: TopicName, schema: SchemaData, *, role: str, strategy: SchemaCompatibility | None = None
    ) -> bytes:
        """Add the schema if it is new and the strategy (or the topic's) permits it; return its version."""

    async def check(
        self, topic: TopicName, schema: SchemaData, *, strategy: SchemaCompatibility | None = None
    ) -> None:
        """IncompatibleSchemaError or InvalidSchemaError if `register` would raise it."""

    async def get(self, topic: TopicName, version: bytes | None = None) -> StoredSchema:
        """The schema of a version, including versions from before a deletion; or the latest.
        SchemaNotFoundError."""

    async def find_version(self, topic: TopicName, schema: SchemaData) -> bytes:
        """The version of this schema in the topic; SchemaNotFoundError."""

    async def versions(self, topic: TopicName) -> list[StoredSchema]:
        """Every version since the last deletion, the oldest first."""

    async def delete(self, topic: TopicName, *, role: str) -> bytes:
        """Delete the topic's schema; return the version of the deletion. Clients can still get old versions by
        number, because messages refer to them. SchemaNotFoundError if the topic has no schema."""
