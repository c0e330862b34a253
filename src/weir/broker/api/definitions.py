"""Definitions of connectors, what their runner says of them, and which runner it is.

Functions that are deployed, what their runner says of them, and which runner it is.

Definitions of SQL streams, what their runner says of them, and which runner it is.

Replays by query, as far as brokers know of them: what is kept of each.

Who runs what is defined: a process that has the lease.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from weir.model.definitions import (
    Connector,
    ConnectorProgress,
    ConnectorWanted,
    Function,
    FunctionStats,
    FunctionWanted,
    Replay,
    ReplayState,
    RunnerLease,
    SqlStream,
    StreamProgress,
    Wanted,
)
from weir.model.topics import NamespaceName, TopicName


class LeasedRunner(Protocol):
    """One runner at a time, of one kind of definitions."""

    async def runner(self) -> RunnerLease | None:
        """Who runs them now."""

    async def take_runner(self, runner: str, where: str, ttl_ms: int) -> RunnerLease:
        """Be the runner for a while, or for a while longer; RunnerBusyError while another is."""

    async def release_runner(self, runner: str) -> None:
        """Not the runner any more; fine if it was not."""


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """What whoever does a replay says of it; None: as before."""

    state: ReplayState | None = None
    selected: tuple[int, ...] | None = None
    delivered: tuple[int, ...] | None = None
    #: Id and epoch of the producer that delivers.
    producer: tuple[int, int] | None = None


class Replays(Protocol):
    async def list(self, topic: TopicName | None = None) -> Sequence[Replay]:
        """All, or those of a topic, the oldest first."""

    async def get(self, topic: TopicName, replay: str) -> Replay:
        """ReplayNotFoundError if there is none."""

    async def begin(self, wanted: Replay) -> Replay:
        """Keep that it was asked for. Asking twice is fine; NotAllowedError if there is another of this id."""

    async def report(self, topic: TopicName, replay: str, step: ReplayStep) -> Replay:
        """How far it is. NotAllowedError for what would change what is fixed; ReplayNotFoundError."""

    async def forget(self, topic: TopicName, replay: str) -> None:
        """ReplayNotFoundError if there is none."""


@dataclass(frozen=True, slots=True)
class DescribedConnector:
    """A connector, and what was last said of it."""

    connector: Connector
    progress: ConnectorProgress | None


class Connectors(LeasedRunner, Protocol):
    """What is carried between topics and other systems."""

    async def list(self, namespace: NamespaceName | None = None) -> Sequence[DescribedConnector]:
        """All of them, or those of a namespace, by name."""

    async def get(self, name: TopicName) -> DescribedConnector:
        """ConnectorNotFoundError if there is none."""

    async def add(self, name: TopicName, *, config: str, role: str) -> Connector:
        """Define it. Asking twice is fine; ConnectorExistsError if there is another of this name."""

    async def update(self, name: TopicName, *, config: str, role: str) -> Connector:
        """Change its definition. It keeps its id, and with it its positions. ConnectorNotFoundError."""

    async def want(self, name: TopicName, wanted: ConnectorWanted) -> None:
        """Change what it shall do; ConnectorNotFoundError if there is none."""

    async def delete(self, name: TopicName) -> None:
        """ConnectorNotFoundError if there is none. What it carried stays; the rest its runner cleans."""

    async def removed(self) -> Sequence[Connector]:
        """Connectors that are no more, and may have left something."""

    async def forget_removed(self, connector_id: str) -> None:
        """Nothing is left of it; fine if it was forgotten before."""

    async def report(self, name: TopicName, progress: ConnectorProgress) -> None:
        """ConnectorNotFoundError unless it is about the connector that has this name now."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """A function, and what was last said of it."""

    function: Function
    stats: FunctionStats | None


@dataclass(frozen=True, slots=True)
class Definition:
    """What somebody deploys."""

    code: str
    file: str
    entry: str
    inputs: tuple[TopicName, ...]
    output: TopicName | None
    options: Mapping[str, str]


class Functions(LeasedRunner, Protocol):
    """What is deployed."""

    async def list(self, namespace: NamespaceName | None = None) -> Sequence[Deployed]:
        """All of them, or those of a namespace, by name."""

    async def get(self, name: TopicName) -> Deployed:
        """FunctionNotFoundError if there is none."""

    async def deploy(self, name: TopicName, what: Definition, *, role: str) -> Function:
        """A new one. Asking twice is fine; FunctionExistsError if there is another of this name."""

    async def update(self, name: TopicName, what: Definition, *, role: str) -> Function:
        """Its next version, if anything is different; FunctionNotFoundError if there is none."""

    async def want(self, name: TopicName, wanted: FunctionWanted) -> Function:
        """What it shall do; FunctionNotFoundError if there is none."""

    async def delete(self, name: TopicName) -> None:
        """FunctionNotFoundError if there is none. Its topics stay."""

    async def report(self, name: TopicName, stats: FunctionStats) -> None:
        """FunctionNotFoundError unless it is about the function that has this name now."""


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
