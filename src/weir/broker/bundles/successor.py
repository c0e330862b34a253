"""What handing over asks of the broker itself, and of the broker that gets the bundle."""

from collections.abc import Sequence
from typing import Protocol

from weir.broker.topic.passing import PassOn
from weir.model.bundles import BundleName
from weir.model.errors import PeerUnsupportedError
from weir.model.ids import LedgerId
from weir.model.topics import TopicName
from weir.stream.left import Left


class Topics(Protocol):
    """The topics that this broker serves, or loads at the moment."""

    @property
    def names(self) -> Sequence[TopicName]: ...

    @property
    def written(self) -> Sequence[TopicName]:
        """Those that have producers."""

    @property
    def last_ledger(self) -> LedgerId:
        """The last ledger of all that it serves, or a later one."""

    async def look_ahead(self, name: TopicName, *, above: LedgerId | None) -> None:
        """Know what can be known of a topic before it is this broker's. `above`: and make a ledger for its
        producers, with a higher id."""

    def was_left(self, name: TopicName, left: Left, epoch: int) -> None:
        """Its broker has let go of it so, for this one to go on, in this leader epoch."""

    def all_passed(self) -> None:
        """The next broker has what was unloaded: what was put off until then may be done."""

    async def load_ahead(self, name: TopicName, *, written: bool) -> None:
        """Before its clients come: everything that the first of them would wait for. `written`: producers are
        among them."""

    async def write_down(self, name: TopicName) -> None:
        """Store now what is stored when the topic is unloaded, while it is served: unloading is short then."""

    async def unload(
        self, name: TopicName, reason: str = "the topic is unloaded", pass_on: PassOn | None = None
    ) -> None:
        """Finish what is under way, close its ledgers, and let go of it. `pass_on` may tell the next broker how it
        was left: then ledgers are closed later."""


class Successor(Protocol):
    async def get_ready(
        self,
        broker_id: str,
        bundle: BundleName,
        topics: Sequence[TopicName],
        written: Sequence[TopicName],
        last_ledger: LedgerId,
    ) -> None:
        """Tell a broker that the bundle is about to be its, which of its topics have clients, and which of those
        producers, whose ledgers come after this one; done when it is ready. That it hears of it is not needed: the
        claim tells it, too."""

    async def pass_on(self, broker_id: str, topic: TopicName, left: Left, epoch: int) -> None:
        """Tell the broker how a topic was left that is about to be its, in this leader epoch. An error if it may
        not have heard."""


class UntoldSuccessor:
    """Fills `Successor` where brokers cannot speak to each other."""

    async def get_ready(
        self,
        broker_id: str,
        bundle: BundleName,
        topics: Sequence[TopicName],
        written: Sequence[TopicName],
        last_ledger: LedgerId,
    ) -> None:
        pass

    async def pass_on(self, broker_id: str, topic: TopicName, left: Left, epoch: int) -> None:
        raise PeerUnsupportedError("brokers cannot speak to each other")


class NoTopics:
    """Fills `Topics` before there is a broker."""

    @property
    def names(self) -> Sequence[TopicName]:
        return ()

    @property
    def written(self) -> Sequence[TopicName]:
        return ()

    @property
    def last_ledger(self) -> LedgerId:
        return LedgerId(0)

    async def look_ahead(self, name: TopicName, *, above: LedgerId | None) -> None:
        pass

    def was_left(self, name: TopicName, left: Left, epoch: int) -> None:
        pass

    def all_passed(self) -> None:
        pass

    async def load_ahead(self, name: TopicName, *, written: bool) -> None:
        pass

    async def write_down(self, name: TopicName) -> None:
        pass

    async def unload(
        self, name: TopicName, reason: str = "the topic is unloaded", pass_on: PassOn | None = None
    ) -> None:
        pass
