"""What handing over asks of the broker itself, and of the broker that gets the bundle."""

from collections.abc import Sequence
from typing import Protocol

from weir.model.bundles import BundleName
from weir.model.topics import TopicName


class Topics(Protocol):
    """The topics that this broker serves, or loads at the moment."""

    @property
    def names(self) -> Sequence[TopicName]: ...

    async def load(self, name: TopicName, *, create: bool = True) -> object: ...

    async def unload(self, name: TopicName, reason: str = "the topic is unloaded") -> None:
        """Finish what is under way, close its ledgers, and let go of it."""


class Successor(Protocol):
    async def get_ready(self, broker_id: str, bundle: BundleName, topics: Sequence[TopicName]) -> None:
        """Tell a broker that the bundle is about to be its, and which of its topics have clients. That it hears of
        it is not needed: the claim tells it, too."""


class UntoldSuccessor:
    """Fills `Successor` where brokers cannot speak to each other."""

    async def get_ready(self, broker_id: str, bundle: BundleName, topics: Sequence[TopicName]) -> None:
        pass


class NoTopics:
    """Fills `Topics` before there is a broker."""

    @property
    def names(self) -> Sequence[TopicName]:
        return ()

    async def load(self, name: TopicName, *, create: bool = True) -> object:
        return None

    async def unload(self, name: TopicName, reason: str = "the topic is unloaded") -> None:
        pass
