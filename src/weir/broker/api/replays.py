"""Replays by query, as far as brokers know of them: what is kept of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from weir.model.replays import Replay, ReplayState
from weir.model.topics import TopicName


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
