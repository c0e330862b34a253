"""Definitions of connectors, what their runner says of them, and which runner it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from weir.broker.api.runners import LeasedRunner
from weir.model.connectors import Connector, ConnectorProgress, ConnectorWanted
from weir.model.topics import NamespaceName, TopicName


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
