"""What the admin API asks of the rest of Weir, and the few things that every resource needs."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from weir.admin.metrics import GatewayFamily
from weir.admin.routing import RefusedError
from weir.broker.api import (
    Authoriser,
    Broker,
    Registry,
    RoleTransactions,
    SchemaVersions,
    SqlStreams,
    StoredTopic,
    Topic,
)
from weir.model.errors import NotAllowedError, TopicNotFoundError
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock

#: How much of a partitioned topic one call loads.
_MAX_PARTS = 1_000


async def _well() -> None:
    """Nothing is known to be wrong."""


@dataclass(frozen=True, slots=True)
class ServiceUrls:
    """Where this broker is reached, by the names of its listeners: as a URL, or as clients of a protocol write
    it (Kafka's: `host:port`)."""

    listeners: Mapping[str, str] = field(default_factory=dict)
    #: Where the data is, on this machine.
    data: str = ""

    def url(self, *names: str) -> str:
        """The first of these listeners that there is; "" if there is none."""
        return next((self.listeners[name] for name in names if self.listeners.get(name)), "")


@dataclass(frozen=True, slots=True)
class AdminSettings:
    #: Series per topic are given for so many topics; a scrape of more would hold the others up.
    metrics_topics: int = 1_000


@dataclass(frozen=True, slots=True)
class AdminContext:
    clock: Clock
    broker: Broker
    registry: Registry
    schemas: SchemaVersions
    authoriser: Authoriser
    urls: ServiceUrls = field(default_factory=ServiceUrls)
    settings: AdminSettings = field(default_factory=AdminSettings)
    #: Raises if this broker cannot do its work now.
    probe: Callable[[], Awaitable[None]] = _well
    #: What the gateways have counted.
    gateways: Callable[[], Sequence[GatewayFamily]] = tuple
    #: The coordinator, where there is one.
    transactions: RoleTransactions | None = None
    #: What SQL has defined, where that is kept.
    sql_streams: SqlStreams | None = None

    # --- topics as calls name them ------------------------------------------------------------------------------

    async def names(self, name: TopicName) -> list[TopicName]:
        """The topics with messages that a call is about: each partition of a partitioned one. 404 if there is
        none."""
        record = self.registry.topics.find(name) or await self.registry.ensure_topic(name, create=False)
        names = record.parts() if name.partition is None else [name]
        if len(names) > _MAX_PARTS:
            raise NotAllowedError(
                f"{name} has {len(names)} partitions, too many for one call", hint="name its partitions one by one"
            )
        return names

    async def stored(self, name: TopicName) -> list[StoredTopic]:
        """The same as loaded topics that store their messages."""
        return [await self.stored_one(part) for part in await self.names(name)]

    async def stored_one(self, name: TopicName) -> StoredTopic:
        """Exactly this topic, loaded; 405 for one that is partitioned."""
        record = await self.registry.ensure_topic(name, create=False)
        if record.partitions and name.partition is None:
            raise RefusedError(405, f"{name} is partitioned", hint="name one of its partitions")
        topic = (await self.load(name)).stored
        if topic is None:
            raise NotAllowedError(f"{name} stores nothing")
        return topic

    async def load(self, name: TopicName) -> Topic:
        """Exactly this topic, loaded; 404 for one that is partitioned."""
        record = await self.registry.ensure_topic(name, create=False)
        if record.partitions and name.partition is None:
            raise TopicNotFoundError(f"{name} is partitioned", hint="name one of its partitions")
        return await self.broker.load(name, create=False)
