"""Definitions of SQL streams, what their runner says of them, and which runner it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from weir.broker.api.runners import LeasedRunner
from weir.model.sql_streams import SqlStream, StreamProgress, Wanted
from weir.model.topics import NamespaceName, TopicName


@dataclass(frozen=True, slots=True)
class Described:
    """A stream, and what was last said of it."""

    stream: SqlStream
    progress: StreamProgress | None


class SqlStreams(LeasedRunner, Protocol):
    """What SQL has defined."""

    async def list(self, namespace: NamespaceName | None = None) -> Sequence[Described]:
        """All of them, or those of a namespace, by name."""

    async def get(self, name: TopicName) -> Described:
        """SqlStreamNotFoundError if there is none."""

    async def put(
        self,
        name: TopicName,
        *,
        sql: str,
        sources: tuple[TopicName, ...],
        options: Mapping[str, str],
        wanted: Wanted,
        role: str,
    ) -> SqlStream:
        """Define it, or change what it shall do. Asking twice is fine; SqlStreamExistsError if there is another of
        this name."""

    async def delete(self, name: TopicName) -> None:
        """SqlStreamNotFoundError if there is none. What it wrote stays; the rest its runner cleans."""

    async def dropped(self) -> Sequence[SqlStream]:
        """Streams that are no more, and may have left something."""

    async def forget_dropped(self, stream_id: str) -> None:
        """Nothing is left of it; fine if it was forgotten before."""

    async def report(self, name: TopicName, progress: StreamProgress) -> None:
        """SqlStreamNotFoundError unless it is about the stream that has this name now."""
