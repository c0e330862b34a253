"""What handing over asks of the broker itself, and of the broker that gets the bundle."""

from collections.abc import Sequence
from typing import Protocol

from weir.model.bundles import BundleName
from weir.model.topics import TopicName


class Topics(Protocol):
    """The topics that this broker serves, or loads at the moment."""

    @property
    def names(self) -> Sequence[TopicName]: ...

    @property
    def written(self) -> Sequence[TopicName]:
        """Those that have producers."""

    async def look_ahead(self, name: TopicName) -> None:
        """Know what can be known of a topic before it is this broker's."""

    async def load_ahead(self, name: TopicName, *, written: bool) -> None:
        """Before its clients come: everything that the first of them would wait for. `written`: producers are
        among them."""

    async def write_down(self, name: TopicName) -> None:
        """Store now what is stored when the topic is unloaded, while it is served: unloading is short then."""

    async def unload(self, name: TopicName, reason: str = "the topic is unloaded") -> None:
        """Finish what is under way, close its ledgers, and let go of it."""


class Successor(Protocol):
    async def get_ready(
        self, broker_id: str, bundle: BundleName, topics: Sequence[TopicName], written: Sequence[TopicName]
    ) -> None:
        """Tell a broker that the bundle is about to be its, which of its topics have clients, and which of those
        producers. That it hears of it is not needed: the claim tells it, too."""


class UntoldSuccessor:
    """Fills `Successor` where brokers cannot speak to each other."""

    async def get_ready(
        self, broker_id: str, bundle: BundleName, topics: Sequence[TopicName], written: Sequence[TopicName]
    ) -> None:
        pass


class NoTopics:
    """Fills `Topics` before there is a broker."""

    @property
    def names(self) -> Sequence[TopicName]:
        return ()

    @property
    def written(self) -> Sequence[TopicName]:
        return ()

    async def look_ahead(self, name: TopicName) -> None:
        pass

    async def load_ahead(self, name: TopicName, *, written: bool) -> None:
        pass

    async def write_down(self, name: TopicName) -> None:
        pass

    async def unload(self, name: TopicName, reason: str = "the topic is unloaded") -> None:
        pass
