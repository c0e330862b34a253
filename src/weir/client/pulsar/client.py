"""The door to a cluster over Pulsar's binary protocol: finds topics, makes producers and consumers.

    async with PulsarClient(runtime, "pulsar://127.0.0.1:6650") as client:
        producer = await client.producer("orders")
        await producer.send(Outgoing(b"hello"))

When a connection breaks, its producers and consumers fail and say so; whoever uses them makes new ones.

Which partition a message goes to, as the official clients decide it: by the key's hash, else in turn.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from weir.client.access import ClientSettings, ConsumerSettings, ProducerSettings, ServerUrl, error_of, parse_url
from weir.client.pulsar.connection import BrokerConnection
from weir.client.pulsar.consumer import Consumer, Inbox, PartConsumer, Subscribing
from weir.client.pulsar.messages import Outgoing
from weir.client.pulsar.producer import Receipt, TopicProducer
from weir.model.errors import BrokerError, ConfigError, WeirError
from weir.model.ids import Buffer
from weir.model.topics import TopicName
from weir.runtime.interfaces import Runtime
from weir.wire.pulsar import pulsar_api_pb2 as api

_MASK = 2**32 - 1


def java_hash(key: str | Buffer) -> int:
    """Java's `String.hashCode`, made positive: over UTF-16 units of text, over bytes otherwise."""
    data = bytes(key) if not isinstance(key, str) else None
    units = data if data is not None else _utf16(str(key))
    number = 0
    for unit in units:
        number = (31 * number + unit) & _MASK
    return number & 0x7FFFFFFF


def _utf16(text: str) -> list[int]:
    raw = text.encode("utf-16-be", errors="surrogatepass")
    return [raw[at] << 8 | raw[at + 1] for at in range(0, len(raw), 2)]


class Router:
    """The choice for one producer; without a key, partitions take turns."""

    def __init__(self, partitions: int, first: int = 0) -> None:
        self._partitions = partitions
        self._next = first % partitions

    def choose(self, key: str | bytes | None) -> int:
        if key is not None:
            return java_hash(key) % self._partitions
        chosen = self._next
        self._next = (chosen + 1) % self._partitions
        return chosen


_MAX_REDIRECTS = 20


class PulsarClient:
    """One client of one cluster; `close` it, or use it as a context."""

    def __init__(self, runtime: Runtime, url: str, settings: ClientSettings | None = None) -> None:
        self._runtime = runtime
        self._url = parse_url(url)
        if self._url.http:
            raise ConfigError(f"{url} is not a broker's URL", hint="write pulsar://host:6650")
        self._settings = settings or ClientSettings()
        self._connections: dict[ServerUrl, asyncio.Task[BrokerConnection]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def producer(self, topic: str, settings: ProducerSettings | None = None) -> "Producer":
        """A producer of the topic, or of all its partitions."""
        settings = settings or ProducerSettings()
        parts: list[TopicProducer] = []
        try:
            for name in await self.partitions(topic):
                part = TopicProducer(self._runtime.clock, await self._owner(name), name, settings)
                await part.open()
                parts.append(part)
        except BaseException:
            await _close_quietly(parts)
            raise
        return Producer(parts, Router(len(parts), self._runtime.rng.randrange(len(parts))))

    async def consumer(self, topic: str, asked: Subscribing, settings: ConsumerSettings | None = None) -> Consumer:
        """A consumer of the topic, or of all its partitions."""
        inbox = Inbox()
        parts: list[PartConsumer] = []
        for at, name in enumerate(await self.partitions(topic, create=asked.create_topic)):
            owner = await self._owner(name)
            parts.append(PartConsumer(owner, name, asked, settings or ConsumerSettings(), inbox=inbox, part=at))
        try:
            for part in parts:
                await part.open()
        except BaseException:
            await _close_quietly(parts)
            raise
        return Consumer(inbox, parts)

    async def partitions(self, topic: str, *, create: bool = True) -> list[str]:
        """The full names of the topic's partitions; its own, if it has none."""
        name = TopicName.parse(topic)
        if name.partition is not None:
            return [str(name)]
        connection = await self._connection(self._url)
        found = await connection.ask(
            api.CommandPartitionedTopicMetadataResponse,
            lambda request_id: api.CommandPartitionedTopicMetadata(
                topic=str(name), request_id=request_id, metadata_auto_creation_enabled=create
            ),
        )
        if found.response == api.CommandPartitionedTopicMetadataResponse.Failed:
            raise error_of(found.error, found.message)
        return [str(name.at(partition)) for partition in range(found.partitions)] or [str(name)]

    async def close(self) -> None:
        connections, self._connections = self._connections, {}
        for opening in connections.values():
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                await opening.result().close()
            else:
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)

    async def _owner(self, topic: str) -> BrokerConnection:
        """A connection to the broker that serves the topic."""
        url, authoritative = self._url, False
        for _ in range(_MAX_REDIRECTS):
            connection = await self._connection(url)
            found = await self._look_up(connection, topic, authoritative)
            if found.response == api.CommandLookupTopicResponse.Failed:
                raise error_of(found.error, found.message)
            if found.proxy_through_service_url:
                return await self._connection(self._url)
            secure = self._url.secure and found.brokerServiceUrlTls
            url = parse_url(found.brokerServiceUrlTls if secure else found.brokerServiceUrl)
            if found.response == api.CommandLookupTopicResponse.Connect:
                return await self._connection(url)
            authoritative = found.authoritative
        raise BrokerError(f"the brokers send each other the lookup of {topic}", hint="try again later")

    async def _look_up(
        self, connection: BrokerConnection, topic: str, authoritative: bool
    ) -> api.CommandLookupTopicResponse:
        return await connection.ask(
            api.CommandLookupTopicResponse,
            lambda request_id: api.CommandLookupTopic(
                topic=topic, request_id=request_id, authoritative=authoritative
            ),
        )

    async def _connection(self, url: ServerUrl) -> BrokerConnection:
        """The connection to this broker; a new one if there is none or it was lost."""
        opening = self._connections.get(url)
        if opening is None or (opening.done() and _useless(opening)):
            opening = asyncio.get_running_loop().create_task(
                BrokerConnection.connect(self._runtime, url, self._settings), name=f"connect to {url}"
            )
            self._connections[url] = opening
        return await asyncio.shield(opening)


class Producer:
    """A producer of a topic with all its partitions."""

    def __init__(self, parts: list[TopicProducer], router: Router) -> None:
        self._parts = parts
        self._router = router

    @property
    def name(self) -> str:
        return self._parts[0].name

    def send(self, message: Outgoing) -> Receipt:
        """Queue a message; the future is done when the broker has stored it."""
        return self._parts[self._router.choose(message.key)].send(message)

    async def wait_capacity(self) -> None:
        """Wait until another message may be sent; call it between messages."""
        for part in self._parts:
            await part.wait_capacity()

    async def close(self) -> None:
        for part in self._parts:
            await part.close()


async def _close_quietly(parts: Sequence[TopicProducer | PartConsumer]) -> None:
    """Let go of the partitions that were opened before another one failed."""
    for part in parts:
        with suppress(WeirError):
            await part.close()


def _useless(opening: "asyncio.Task[BrokerConnection]") -> bool:
    return opening.cancelled() or opening.exception() is not None or opening.result().lost
