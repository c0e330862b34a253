"""Connectors: what is carried between topics and other systems, what is wanted of it, and how far it is."""

from dataclasses import dataclass
from enum import Enum

from weir.model.topics import TopicName


class ConnectorWanted(Enum):
    """What a connector shall do. A paused one keeps what it has open; a stopped one has nothing open."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Connector:
    """A definition. Its name is built as a topic's is, and is no topic."""

    name: TopicName
    #: Not given to another connector, so what a removed one left is not taken for its successor's.
    id: str
    #: What its file said, as JSON; secrets are named there, never told.
    config: str
    wanted: ConnectorWanted = ConnectorWanted.RUNNING
    #: Who defined it.
    role: str = ""
    created_ms: int = 0

    @property
    def subscription(self) -> str:
        """By which a sink reads; what it has not read stays in the topic."""
        return f"connect-{self.name.local}"


@dataclass(frozen=True, slots=True)
class ConnectorProgress:
    """What the runner last said of a connector. `id`: which connector of that name it is about."""

    id: str
    #: starting, running, failed, paused or stopped.
    state: str
    #: Carried since the runner started it.
    records: int = 0
    records_per_second: float = 0.0
    #: Messages that wait for it, of a sink; of a source what it knows of; -1: not known.
    lag: int = -1
    #: How many could not be carried, and are dead letters.
    dead_letters: int = 0
    #: How often it was opened again after a failure, since its runner began; and how long its last batch took.
    restarts: int = 0
    batch_ms: int = 0
    #: Where it is, in its own words.
    position: str = ""
    #: What it last died of; kept until it is seen to work again.
    error: str = ""
    failures: int = 0
    #: When it died last, and when it is tried again, in ms since 1970; 0: never, or it is being tried.
    failed_ms: int = 0
    next_try_ms: int = 0
    reported_ms: int = 0
