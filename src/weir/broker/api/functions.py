"""Functions that are deployed, what their runner says of them, and which runner it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from weir.broker.api.runners import LeasedRunner
from weir.model.functions import Function, FunctionStats, FunctionWanted
from weir.model.topics import NamespaceName, TopicName


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
