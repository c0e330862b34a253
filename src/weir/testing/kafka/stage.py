"""A Kafka gateway over a fake broker, and clients that speak to it request by request, in simulated time."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from weir.broker.api.producers import Outgoing
from weir.broker.metadata.registry import Registry
from weir.broker.security.authentication import SecuritySettings
from weir.broker.security.authorization import Authoriser, TopicGuard
from weir.gateway.kafka.context import Services
from weir.gateway.kafka.gateway import KafkaServer
from weir.gateway.kafka.metadata import Catalog
from weir.gateway.kafka.settings import KafkaSettings, SessionLimits
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.batch import BatchFormat
from weir.model.errors import NetworkError
from weir.model.policies import DEFAULT_POLICIES, Policies
from weir.model.topics import TopicName
from weir.runtime.interfaces import Runtime
from weir.testing.broker.fake import FakeBroker, FakeTopic
from weir.testing.world.world import World, simulate
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import API, ApiKey
from weir.wire.kafka.codec import decode_response
from weir.wire.kafka.frames import RequestHeader, decode_response_header, request_frame, splitter
from weir.wire.kafka.record_batch import parse_header, split_batches
from weir.wire.kafka.records import Record, build_batch, iter_records


def batch_of(*values: bytes, timestamps: list[int] | None = None, **more: Any) -> bytes:
    """A record batch as a producer sends it."""
    times = timestamps or [1_700_000_000_000 + at for at in range(len(values))]
    records = [
        Record(delta, moment, None, value, [])
        for delta, (value, moment) in enumerate(zip(values, times, strict=True))
    ]
    return build_batch(records, **more)


@dataclass
class Peer:
    """A client that speaks requests: says one thing, and looks at what comes."""

    connection: Any
    asked: list[tuple[int, int, int]] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self._splitter = splitter()

    def ask(self, key: ApiKey, version: int, message: m.Message) -> int:
        """Send a request; its correlation id."""
        self.count += 1
        header = RequestHeader(key, version, self.count, "peer")
        self.connection.write(request_frame(header, message))
        self.asked.append((key, version, self.count))
        return self.count

    def say(self, frame: bytes) -> None:
        """Bytes of the test's own, as a frame."""
        self.connection.write([len(frame).to_bytes(4, "big") + frame])

    async def frame(self) -> bytes | None:
        """The next frame; None at the end of the connection."""
        while not self.frames:
            data = await self.connection.receive()
            if not data:
                return None
            self.frames += [bytes(body) for body in self._splitter.feed(bytes(data))]
        return self.frames.pop(0)

    async def hear(self) -> Any:
        """The answer to the oldest request that has none; answers come in the order of requests."""
        key, version, number = self.asked.pop(0)
        body = await self.frame()
        assert body is not None, f"the connection ended instead of an answer to {API[ApiKey(key)].name}"
        header, rest = decode_response_header(key, version, body)
        assert header.correlation_id == number
        return decode_response(key, version, rest)

    async def call(self, key: ApiKey, version: int, message: m.Message) -> Any:
        self.ask(key, version, message)
        return await self.hear()

    async def hangs_up(self) -> bool:
        """Whether the connection ends with nothing more said."""
        try:
            return await self.frame() is None
        except NetworkError:
            return True

    # --- what tests ask again and again

    def produce(
        self, topic: str, batch: bytes | None, *, acks: int = -1, index: int = 0, version: int = 9
    ) -> None:
        data = m.ProduceRequest.PartitionProduceData(index=index, records=batch)
        named = m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
        self.ask(ApiKey.PRODUCE, version, m.ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[named]))
        if acks == 0:
            self.asked.pop()

    async def produced(self) -> Any:
        """The one partition of the next answer to a produce."""
        answer = await self.hear()
        return answer.responses[0].partition_responses[0]

    def fetch(self, *wanted: tuple[str, int, int], version: int = 11, **more: Any) -> None:
        """Fetch (topic, partition, offset)."""
        more = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 2**20, "session_epoch": -1, **more}
        most = more.pop("partition_max_bytes", 2**20)
        topics: dict[str, list[Any]] = {}
        for topic, index, offset in wanted:
            part = m.FetchRequest.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=most)
            topics.setdefault(topic, []).append(part)
        named = [m.FetchRequest.FetchTopic(topic=name, partitions=parts) for name, parts in topics.items()]
        self.ask(ApiKey.FETCH, version, m.FetchRequest(topics=named, **more))

    async def fetched(self) -> Any:
        """The one partition of the next answer to a fetch."""
        answer = await self.hear()
        assert answer.error_code == 0
        ((part,),) = [topic.partitions for topic in answer.responses]
        return part

    async def metadata(self, *names: str, version: int = 9) -> Any:
        asked = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        return await self.call(ApiKey.METADATA, version, m.MetadataRequest(topics=asked))


@dataclass
class Stage:
    """A gateway over a fake broker, and peers of it."""

    broker: FakeBroker
    server: KafkaServer
    registry: Registry
    runtime: Runtime

    async def peer(self) -> Peer:
        return Peer(await self.runtime.net.connect("server", self.server.port))

    async def topic(self, name: str = "orders", partitions: int = 1) -> FakeTopic:
        """A topic that there is; its partition 0."""
        base = TopicName.parse(name)
        await self.registry.topics.create(base, partitions=partitions)
        return self.at(name)

    def at(self, name: str = "orders", index: int = 0) -> FakeTopic:
        return self.broker.at(str(TopicName.parse(name).at(index)))

    async def later(self, seconds: float) -> None:
        await self.runtime.clock.sleep(seconds)


def store(topic: FakeTopic, *values: bytes) -> int:
    """A batch that some producer sent earlier."""
    return topic.append(Outgoing(batch_of(*values), len(values), BatchFormat.KAFKA))


def values_of(part: Any) -> list[tuple[int, bytes]]:
    """Offset and value of every record in an answer."""
    return [
        (parse_header(batch).base_offset + record.offset_delta, bytes(record.value or b""))
        for batch in split_batches(part.records)
        for record in iter_records(batch)
    ]


async def begin(peer: Peer, *wanted: tuple[str, int, int]) -> Any:
    peer.fetch(*wanted, session_epoch=0, max_wait_ms=100)
    return await peer.hear()


async def go_on(peer: Peer, number: int, epoch: int, *changed: tuple[str, int, int], **more: Any) -> Any:
    peer.fetch(*changed, session_id=number, session_epoch=epoch, **{"max_wait_ms": 100, **more})
    return await peer.hear()


def told(answer: Any) -> dict[int, list[tuple[int, bytes]]]:
    return {part.partition_index: values_of(part) for topic in answer.responses for part in topic.partitions}


Play = Callable[[Stage], Coroutine[Any, Any, None]]


def play(
    conversation: Play,
    *,
    settings: KafkaSettings | None = None,
    policies: Policies = DEFAULT_POLICIES,
    security: SecuritySettings | None = None,
    **limits: Any,
) -> None:
    """Run a conversation with a gateway in simulated time."""

    async def scenario(world: World) -> None:
        async def main(runtime: Runtime) -> None:
            registry = Registry(MemoryMeta(MemoryCore(runtime.clock), runtime), runtime, policies)
            await registry.start()
            broker = FakeBroker()
            authoriser = Authoriser(registry, security or SecuritySettings())
            guard = TopicGuard(authoriser)
            chosen = replace(
                settings or KafkaSettings(max_connections=20),
                host="server",
                port=9092,
                limits=SessionLimits(**limits),
            )
            services = Services(
                runtime.clock, broker, registry, Catalog(registry, guard), guard, authoriser, chosen
            )
            server = KafkaServer(runtime, services)
            await server.start()

            async def client(its: Runtime) -> None:
                await conversation(Stage(broker, server, registry, its))

            await world.node("client").start(client)
            await server.close()
            await registry.close()

        await world.node("server").start(main)

    simulate(1, scenario)
