"""What the Kafka gateway costs its loop for each request, without network, disk and broker.

    python -m bench.micro_kafka_gateway            a table
    python -m bench.micro_kafka_gateway --profile  and where the time goes

A connection that is a list of buffers, a broker that stores at once; so what is measured is frames, headers,
bodies, checks, the order of answers and their encoding.
"""

import asyncio
import cProfile
import pstats
import sys
from collections.abc import Sequence
from time import process_time

from weir.broker.api.broker import Owner
from weir.broker.api.producers import Outgoing, ProducerRequest, Receipt
from weir.broker.cluster.ownership import BundleOwnership
from weir.broker.metadata.registry import Registry
from weir.broker.security.authentication import SecuritySettings
from weir.broker.security.authorization import Authoriser, TopicGuard
from weir.gateway.kafka.context import Services
from weir.gateway.kafka.gateway import KafkaServer
from weir.gateway.kafka.metadata import Catalog
from weir.gateway.kafka.session import Session
from weir.gateway.kafka.settings import KafkaSettings
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.batch import Batch, BatchFormat
from weir.model.ids import Buffer
from weir.model.registry import BrokerInfo
from weir.model.topics import TopicName
from weir.runtime.interfaces import Runtime
from weir.runtime.real import real_runtime
from weir.testing.broker.fake import FakeBroker, FakeProducer, FakeTopic
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.frames import RequestHeader, request_frame
from weir.wire.kafka.records import Record, build_batch
from weir.wire.registry import encode_broker

_TOPIC = "orders"
_ROUNDS = 200
#: Of what metadata are asked for.
_TOPICS, _PARTITIONS = 100, 50
#: Requests that arrive together, as those of a busy producer do.
_AT_ONCE = 16


class Fed:
    """A connection whose client has sent everything already."""

    #: Everything that is written is taken at once.
    unsent_bytes = 0

    peer = "bench:1"
    certificate = None

    def __init__(self) -> None:
        self._data: list[Buffer] = []
        self._more: asyncio.Future[None] | None = None
        self.written = 0
        self.quiet = asyncio.Event()

    def feed(self, data: Buffer) -> None:
        self._data.append(data)
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def receive(self) -> Buffer:
        while not self._data:
            self._more = asyncio.get_running_loop().create_future()
            await self._more
        return self._data.pop(0)

    def write(self, buffers: Sequence[Buffer]) -> None:
        self.written += sum(map(len, buffers))
        self.quiet.set()

    async def drain(self) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


class Forgetful(FakeTopic):
    """Stores without keeping."""

    def __init__(self, name: TopicName) -> None:
        super().__init__(name)
        self.end = 0
        self.kept: list[Batch] = []

    @property
    def end_offset(self) -> int:
        return self.end

    async def produce(self, request: ProducerRequest) -> FakeProducer:
        return _AtOnce(self, request)

    async def read(self, offset: int, max_bytes: int) -> list[Batch]:
        return self.kept


class _Direct(FakeBroker):
    async def topic(self, name: TopicName, *, role: str, create: bool = True) -> FakeTopic:
        return self.served[name]


class _OfCluster(_Direct):
    """Who leads what is asked of the claims of a cluster, where nobody has anything yet."""

    def __init__(self, ownership: BundleOwnership) -> None:
        super().__init__()
        self._ownership = ownership

    def owner_now(self, name: TopicName) -> Owner:
        return self._ownership.owner_now(name)

    def owners_now(self, name: TopicName, partitions: Sequence[int]) -> list[Owner]:
        return self._ownership.owners_now(name, partitions)

    def brokers(self) -> list[BrokerInfo]:
        return self._ownership.brokers()


class _AtOnce(FakeProducer):
    async def close(self) -> None:
        pass

    def publish(self, outgoing: Outgoing) -> "asyncio.Future[Receipt]":
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        receipt.set_result(Receipt(0, (1, 1)))
        return receipt


async def _cluster(runtime: Runtime, meta: MetaStore, registry: Registry, count: int) -> BundleOwnership:
    """The first of some brokers."""
    infos = [BrokerInfo(f"broker-{at}", f"{at}", {"kafka": f"127.0.0.1:{9092 + at}"}, at) for at in range(count)]
    for info in infos[1:]:
        await meta.put(keys.broker(info.broker_id), encode_broker(info))
    first = BundleOwnership(
        meta, runtime, infos[0], isolation_of=lambda namespace: registry.policies(namespace).isolation
    )
    await first.start()
    return first


async def _stage(runtime: Runtime, brokers: int = 0) -> tuple[KafkaServer, FakeBroker, Registry]:
    """`brokers`: of the cluster; 0: a broker on its own."""
    meta = MemoryMeta(MemoryCore(runtime.clock), runtime)
    registry = Registry(meta, runtime)
    await registry.start()
    await registry.topics.create(TopicName.parse(_TOPIC), partitions=64)
    for number in range(_TOPICS):
        await registry.topics.create(TopicName.parse(f"many-{number}"), partitions=_PARTITIONS)
    broker = _OfCluster(await _cluster(runtime, meta, registry, brokers)) if brokers else _Direct()
    for index in range(64):
        part = TopicName.parse(_TOPIC).at(index)
        broker.served[part] = Forgetful(part)
    guard = TopicGuard(authoriser := Authoriser(registry, SecuritySettings()))
    services = Services(
        runtime.clock, broker, registry, Catalog(registry, guard), guard, authoriser, KafkaSettings()
    )
    return KafkaServer(runtime, services), broker, registry


def _batch(size: int, records: int) -> bytes:
    return build_batch([Record(at, 1_700_000_000_000, None, bytes(size), []) for at in range(records)])


def _produce(batch: bytes, partitions: int) -> bytes:
    data = [m.ProduceRequest.PartitionProduceData(index=at, records=batch) for at in range(partitions)]
    topic = m.ProduceRequest.TopicProduceData(name=_TOPIC, partition_data=data)
    request = m.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])
    return b"".join(map(bytes, request_frame(RequestHeader(ApiKey.PRODUCE, 9, 1, "bench"), request)))


def _fetch(partitions: int) -> bytes:
    parts = [
        m.FetchRequest.FetchPartition(partition=at, fetch_offset=0, partition_max_bytes=2**20)
        for at in range(partitions)
    ]
    topic = m.FetchRequest.FetchTopic(topic=_TOPIC, partitions=parts)
    request = m.FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=50 * 2**20, session_epoch=-1, topics=[topic])
    return b"".join(map(bytes, request_frame(RequestHeader(ApiKey.FETCH, 11, 1, "bench"), request)))


def _metadata(topics: int) -> bytes:
    named = [m.MetadataRequest.MetadataRequestTopic(name=f"many-{number}") for number in range(topics)]
    request = m.MetadataRequest(topics=named)
    return b"".join(map(bytes, request_frame(RequestHeader(ApiKey.METADATA, 9, 1, "bench"), request)))


async def _measure(server: KafkaServer, frame: bytes, at_once: int, rounds: int = _ROUNDS) -> float:
    """Microseconds per request."""
    connection = Fed()
    session: Session = server._session(connection)
    running = asyncio.create_task(session.run())
    buffer = frame * at_once
    best = float("inf")
    for repeat in range(6):
        began = process_time()
        for _ in range(rounds):
            connection.quiet.clear()
            connection.feed(buffer)
            while connection.quiet.is_set() is False or session.load.requests:
                await asyncio.sleep(0)
        if repeat:
            best = min(best, process_time() - began)
    session.abort()
    await running
    return best / rounds / at_once * 1e6


async def _main(profile: bool) -> None:
    server, broker, registry = await _stage(real_runtime())
    kept = [Batch(at * 10, 10, BatchFormat.KAFKA, 0, _batch(100, 10)) for at in range(10)]
    for topic in broker.served.values():
        if isinstance(topic, Forgetful):
            topic.end, topic.kept = 100, kept
    cases = [
        ("produce, one batch of 10 x 100 B", _produce(_batch(100, 10), 1), _AT_ONCE),
        ("produce, one batch of 10 x 100 B, alone", _produce(_batch(100, 10), 1), 1),
        ("produce, one batch of 16 KiB", _produce(_batch(1024, 16), 1), _AT_ONCE),
        ("produce, 64 partitions", _produce(_batch(100, 10), 64), 1),
        ("fetch, one partition, 10 batches", _fetch(1), 1),
        ("fetch, 64 partitions", _fetch(64), 1),
        ("metadata, 50 partitions", _metadata(1), 1),
        (f"metadata, {_TOPICS * _PARTITIONS} partitions", _metadata(_TOPICS), 1),
    ]
    for name, frame, at_once in cases:
        rounds = 3 if len(frame) > 1000 and "metadata" in name else _ROUNDS
        profiler = cProfile.Profile() if profile else None
        if profiler is not None:
            profiler.enable()
        spent = await _measure(server, frame, at_once, rounds)
        print(f"{name:45} {spent:8.1f} us/request")
        if profiler is not None:
            profiler.disable()
            pstats.Stats(profiler).sort_stats("tottime").print_stats(22)
    await registry.close()
    clustered, _, registry = await _stage(real_runtime(), brokers=3)
    for topics in (1, _TOPICS):
        spent = await _measure(clustered, _metadata(topics), 1, 3 if topics > 1 else _ROUNDS)
        print(f"{f'metadata, {topics * _PARTITIONS} partitions, 3 brokers':45} {spent:8.1f} us/request")
    await registry.close()


if __name__ == "__main__":
    asyncio.run(_main("--profile" in sys.argv))
