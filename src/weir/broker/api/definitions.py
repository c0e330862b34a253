"""Stored definitions of connectors, functions, SQL streams and replays, with the reported progress of each.

One worker process at a time, the runner, runs the definitions of a kind; it has a lease.
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
    """The lease of the single runner of one kind of definitions."""

    async def runner(self) -> RunnerLease | None:
        """The current lease; None while the kind has no runner."""

    async def take_runner(self, runner: str, where: str, ttl_ms: int) -> RunnerLease:
        """Acquire or renew the lease for `ttl_ms`; RunnerBusyError while another runner has it."""

    async def release_runner(self, runner: str) -> None:
        """Release the lease; a no-op if this runner does not have it."""


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """A progress report of the process that runs a replay; None: unchanged."""

    state: ReplayState | None = None
    selected: tuple[int, ...] | None = None
    delivered: tuple[int, ...] | None = None
    #: Id and epoch of the delivering producer.
    producer: tuple[int, int] | None = None


class Replays(Protocol):
    async def list(self, topic: TopicName | None = None) -> Sequence[Replay]:
        """All replays, or those of a topic, the oldest first."""

    async def get(self, topic: TopicName, replay: str) -> Replay:
        """ReplayNotFoundError if it does not exist."""

    async def begin(self, wanted: Replay) -> Replay:
        """Store the request of a replay. Idempotent; NotAllowedError if another replay has this id."""

    async def report(self, topic: TopicName, replay: str, step: ReplayStep) -> Replay:
        """Store a progress report. NotAllowedError if it changes a value that is final; ReplayNotFoundError."""

    async def forget(self, topic: TopicName, replay: str) -> None:
        """Delete the record of a replay; ReplayNotFoundError if it does not exist."""


@dataclass(frozen=True, slots=True)
class DescribedConnector:
    """A connector and its latest progress report."""

    connector: Connector
    progress: ConnectorProgress | None


class Connectors(LeasedRunner, Protocol):
    """Connectors: they copy messages between topics and other systems."""

    async def list(self, namespace: NamespaceName | None = None) -> Sequence[DescribedConnector]:
        """All connectors, or those of a namespace, by name."""

    async def get(self, name: TopicName) -> DescribedConnector:
        """ConnectorNotFoundError if it does not exist."""

    async def add(self, name: TopicName, *, config: str, role: str) -> Connector:
        """Define a connector. Idempotent; ConnectorExistsError if another definition has this name."""

    async def update(self, name: TopicName, *, config: str, role: str) -> Connector:
        """Change its definition. It keeps its id and therefore its positions. ConnectorNotFoundError."""

    async def want(self, name: TopicName, wanted: ConnectorWanted) -> None:
        """Change its wanted state; ConnectorNotFoundError if it does not exist."""

    async def delete(self, name: TopicName) -> None:
        """Delete a connector. Copied messages stay; its runner removes the rest. ConnectorNotFoundError if it does
        not exist."""

    async def removed(self) -> Sequence[Connector]:
        """Deleted connectors that may still have data to clean up."""

    async def forget_removed(self, connector_id: str) -> None:
        """Record that the cleanup of a deleted connector is complete. Idempotent."""

    async def report(self, name: TopicName, progress: ConnectorProgress) -> None:
        """Store a progress report; ConnectorNotFoundError if the name now belongs to no or another connector."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """A function and its latest stats."""

    function: Function
    stats: FunctionStats | None


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of a function to deploy."""

    code: str
    file: str
    entry: str
    inputs: tuple[TopicName, ...]
    output: TopicName | None
    options: Mapping[str, str]


class Functions(LeasedRunner, Protocol):
    """Deployed functions."""

    async def list(self, namespace: NamespaceName | None = None) -> Sequence[Deployed]:
        """All functions, or those of a namespace, by name."""

    async def get(self, name: TopicName) -> Deployed:
        """FunctionNotFoundError if it does not exist."""

    async def deploy(self, name: TopicName, what: Definition, *, role: str) -> Function:
        """Deploy a new function. Idempotent; FunctionExistsError if another function has this name."""

    async def update(self, name: TopicName, what: Definition, *, role: str) -> Function:
        """Deploy its next version, if the definition differs; FunctionNotFoundError if it does not exist."""

    async def want(self, name: TopicName, wanted: FunctionWanted) -> Function:
        """Change its wanted state; FunctionNotFoundError if it does not exist."""

    async def delete(self, name: TopicName) -> None:
        """Delete a function. Its topics stay. FunctionNotFoundError if it does not exist."""

    async def report(self, name: TopicName, stats: FunctionStats) -> None:
        """Store its stats; FunctionNotFoundError if the name now belongs to no or another function."""


@dataclass(frozen=True, slots=True)
class Described:
    """A SQL stream and its latest progress report."""

    stream: SqlStream
    progress: StreamProgress | None


class SqlStreams(LeasedRunner, Protocol):
    """Streams defined in SQL."""

    async def list(self, namespace: NamespaceName | None = None) -> Sequence[Described]:
        """All streams, or those of a namespace, by name."""

    async def get(self, name: TopicName) -> Described:
        """SqlStreamNotFoundError if it does not exist."""

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
        """Define a stream, or change its wanted state. Idempotent; SqlStreamExistsError if another definition has
        this name."""

    async def delete(self, name: TopicName) -> None:
        """Delete a stream. Its output stays; its runner removes the rest. SqlStreamNotFoundError if it does not
        exist."""

    async def dropped(self) -> Sequence[SqlStream]:
        """Deleted streams that may still have data to clean up."""

    async def forget_dropped(self, stream_id: str) -> None:
        """Record that the cleanup of a deleted stream is complete. Idempotent."""

    async def report(self, name: TopicName, progress: StreamProgress) -> None:
        """Store a progress report; SqlStreamNotFoundError if the name now belongs to no or another stream."""
