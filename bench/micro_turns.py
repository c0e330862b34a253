"""`python -m bench.micro_turns [ATTACK ...]`: the longest hold of the event loop, per attack of one connection.

A whole broker on a thread of its own, and one client that sends what costs most to serve. Every callback of the
broker's loop is measured in CPU time of its thread, which a busy machine distorts least; the largest is what every
other connection had to wait. No attack should hold the loop for more than some tens of milliseconds.
"""

import asyncio
import gc
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from time import thread_time
from typing import Any

from weir.runtime.real import real_runtime
from weir.server.broker_node import BrokerNode
from weir.server.config.load import load
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.frames import RequestHeader, request_frame
from weir.wire.kafka.frames import splitter as kafka_splitter
from weir.wire.kafka.records import Record, build_batch
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.frames import decode_frame, encode_command, encode_with_message, splitter
from weir.wire.pulsar.message import seal_message
from weir.wire.pulsar.proto import Message

BATCH = 100_000
MANY = 100_000
#: Topics need two elements of a request, with a partition each; a request has 131,072.
PARTS = 60_000


class Held:
    """The longest callback of one loop."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.longest_s = 0.0
        self.where = ""
        self.total_s = 0.0

    def reset(self) -> None:
        self.longest_s, self.where, self.total_s = 0.0, "", 0.0


HELD = Held()
_run = asyncio.Handle._run


def _watched(handle: Any) -> None:
    if handle._loop is not HELD.loop:
        _run(handle)
        return
    what = repr(handle._callback)
    before = thread_time()
    _run(handle)
    took = thread_time() - before
    HELD.total_s += took
    if took > HELD.longest_s:
        HELD.longest_s, HELD.where = took, what


class Broker:
    def __init__(self, folder: str, *settings: str) -> None:
        self._settings = [
            f"data={folder}",
            "listeners.pulsar=127.0.0.1:0",
            "listeners.kafka=127.0.0.1:0",
            "listeners.amqp=",
            "listeners.rocketmq=",
            "listeners.http=127.0.0.1:0",
            "storage.low_water_bytes=0",
            "storage.high_water_bytes=0",
            *settings,
        ]
        self._loop = asyncio.new_event_loop()
        HELD.loop = self._loop
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def call(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(600)

    async def _start(self) -> None:
        self.up = BrokerNode(real_runtime(), load(assignments=self._settings).config)
        await self.up.start()

    def start(self) -> None:
        self.call(self._start)

    def stop(self) -> None:
        self.call(self.up.close)

    def port(self, name: str) -> int:
        return self.up.addresses[name].port


class Pulsar:
    """A connection that speaks frames."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._splitter = splitter()
        self._frames: list[Any] = []

    async def open(self) -> "Pulsar":
        self._reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        self.say(api.CommandConnect(client_version="bench", protocol_version=20))
        await self.until(api.CommandConnected)
        return self

    def say(self, *commands: Message) -> None:
        self.writer.write(b"".join(map(encode_command, commands)))

    async def until(self, kind: type[Any]) -> Any:
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if isinstance(frame.command, kind):
                    return frame.command
            data = await self._reader.read(1 << 18)
            assert data, f"the connection ended before a {kind.__name__}"
            self._frames += [decode_frame(body) for body in self._splitter.feed(data)]

    async def answered(self) -> None:
        """Everything before it was taken."""
        self.say(api.CommandPing())
        await self.until(api.CommandPong)

    async def send(self, topic: str, count: int, batches: int = 1, payload: bytes = b"") -> None:
        self.say(api.CommandProducer(topic=topic, producer_id=1, request_id=1))
        await self.until(api.CommandProducerSuccess)
        for sequence in range(batches):
            head = api.MessageMetadata(
                producer_name="p", sequence_id=sequence, publish_time=1, num_messages_in_batch=count
            )
            command = api.CommandSend(producer_id=1, sequence_id=sequence, num_messages=count)
            self.writer.write(b"".join(encode_with_message(command, seal_message(head, payload))))
        for _ in range(batches):
            await self.until(api.CommandSendReceipt)

    async def subscribe(self, topic: str, kind: Any, consumer: int = 1) -> None:
        self.say(
            api.CommandSubscribe(
                topic=topic,
                subscription="s",
                subType=kind,
                consumer_id=consumer,
                request_id=2,
                initialPosition=api.CommandSubscribe.Earliest,
            )
        )
        await self.until(api.CommandSuccess)

    async def take(self, batches: int = 1, permits: int = 2**30) -> list[Any]:
        self.say(api.CommandFlow(consumer_id=1, messagePermits=permits))
        return [(await self.until(api.CommandMessage)).message_id for _ in range(batches)]

    def ack(self, ids: Iterable[Any], request: int | None = None, **more: Any) -> None:
        command = api.CommandAck(consumer_id=1, ack_type=api.CommandAck.Individual, message_id=ids, **more)
        if request is not None:
            command.request_id = request
        self.say(command)


async def _batch_acks(broker: Broker, kind: Any) -> None:
    """Every other message of one batch, then of the rest every other, and so on."""
    client = await Pulsar(broker.port("pulsar")).open()
    topic = "persistent://public/default/acks"
    await client.send(topic, BATCH)
    await client.subscribe(topic, kind)
    (at,) = await client.take()
    HELD.reset()
    words = -(-BATCH // 64)
    for pattern in (0x5555555555555555, 0x1111111111111111, 0x0101010101010101):
        client.ack([_with_set(at, [_signed(pattern)] * words)])
    await client.answered()


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def _with_set(at: Any, words: list[int]) -> Any:
    made = api.MessageIdData()
    made.CopyFrom(at)
    del made.ack_set[:]
    made.ack_set.extend(words)
    return made


async def acks_shared(broker: Broker) -> None:
    await _batch_acks(broker, api.CommandSubscribe.Shared)


async def acks_key_shared(broker: Broker) -> None:
    await _batch_acks(broker, api.CommandSubscribe.Key_Shared)


async def acks_exclusive(broker: Broker) -> None:
    await _batch_acks(broker, api.CommandSubscribe.Exclusive)


async def acks_then_redelivered(broker: Broker) -> None:
    """Half of a batch is acknowledged, and the other half asked for again and again."""
    client = await Pulsar(broker.port("pulsar")).open()
    topic = "persistent://public/default/again"
    await client.send(topic, BATCH)
    await client.subscribe(topic, api.CommandSubscribe.Shared)
    (at,) = await client.take()
    client.ack([_with_set(at, [0x5555555555555555] * -(-BATCH // 64))])
    await client.answered()
    HELD.reset()
    for _ in range(5):
        client.say(api.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
        await client.take()
    await client.answered()


async def acks_in_one_command(broker: Broker) -> None:
    """150,000 ids in one command: of one batch, then of nothing that was delivered."""
    client = await Pulsar(broker.port("pulsar")).open()
    topic = "persistent://public/default/ids"
    await client.send(topic, BATCH)
    await client.subscribe(topic, api.CommandSubscribe.Shared)
    (at,) = await client.take()
    HELD.reset()
    client.ack([_with_set(at, [1])] * 150_000)
    await client.answered()
    client.ack([api.MessageIdData(ledgerId=at.ledgerId, entryId=at.entryId + n) for n in range(150_000)])
    await client.answered()


async def acks_of_many_batches(broker: Broker) -> None:
    """A command for 100,000 delivered batches of one."""
    client = await Pulsar(broker.port("pulsar")).open()
    topic = "persistent://public/default/many"
    await client.send(topic, 1, batches=50_000)
    await client.subscribe(topic, api.CommandSubscribe.Shared)
    ids = await client.take(50_000)
    HELD.reset()
    client.ack(ids[::2])
    await client.answered()


async def redeliver_many(broker: Broker) -> None:
    client = await Pulsar(broker.port("pulsar")).open()
    topic = "persistent://public/default/redeliver"
    await client.send(topic, 1, batches=50_000)
    await client.subscribe(topic, api.CommandSubscribe.Shared)
    ids = await client.take(50_000)
    HELD.reset()
    client.say(api.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids[::2]))
    await client.answered()
    client.say(api.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
    await client.answered()


async def redeliver_with_inbox(broker: Broker) -> None:
    """Redelivery of many ids while much is on its way to the consumer."""
    client = await Pulsar(broker.port("pulsar")).open()
    topic = "persistent://public/default/inbox"
    await client.send(topic, 1, batches=20_000)
    await client.subscribe(topic, api.CommandSubscribe.Shared)
    ids = await client.take(10_000, permits=10_000)
    HELD.reset()
    client.say(
        api.CommandFlow(consumer_id=1, messagePermits=10_000),
        api.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids),
        api.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids),
    )
    await client.answered()


async def properties_of_a_producer(broker: Broker) -> None:
    client = await Pulsar(broker.port("pulsar")).open()
    HELD.reset()
    client.say(
        api.CommandProducer(
            topic="persistent://public/default/p",
            producer_id=1,
            request_id=1,
            metadata=[api.KeyValue(key=f"k{n}", value="v") for n in range(250_000)],
        )
    )
    await client.until((api.CommandProducerSuccess, api.CommandError))  # type: ignore[arg-type]


class Kafka:
    def __init__(self, port: int) -> None:
        self._port = port
        self._splitter = kafka_splitter()
        self._frames: list[bytes] = []
        self._count = 0

    async def open(self) -> "Kafka":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    def say(self, key: ApiKey, version: int, request: m.Message) -> None:
        self._count += 1
        self._writer.write(b"".join(request_frame(RequestHeader(key, version, self._count, "bench"), request)))

    async def hear(self) -> bytes:
        while not self._frames:
            data = await self._reader.read(1 << 18)
            assert data, "the connection ended"
            self._frames += [bytes(body) for body in self._splitter.feed(data)]
        return self._frames.pop(0)

    async def ask(self, key: ApiKey, version: int, request: m.Message) -> bytes:
        self.say(key, version, request)
        return await self.hear()


async def _kafka(broker: Broker) -> Kafka:
    return await Kafka(broker.port("kafka")).open()


def _names(count: int) -> list[str]:
    return [f"t{number}" for number in range(count)]


async def metadata_of_named(broker: Broker) -> None:
    """100,000 topics that are not there."""
    client = await _kafka(broker)
    wanted = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in _names(PARTS)]
    HELD.reset()
    await client.ask(ApiKey.METADATA, 9, m.MetadataRequest(topics=wanted, allow_auto_topic_creation=False))


async def _topics(client: Kafka, count: int, partitions: int = 1) -> list[str]:
    names = _names(count)
    for first in range(0, count, 1000):
        made = [
            m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
            for name in names[first : first + 1000]
        ]
        await client.ask(ApiKey.CREATE_TOPICS, 5, m.CreateTopicsRequest(topics=made, timeout_ms=60_000))
    return names


async def metadata_of_all(broker: Broker) -> None:
    """5,000 topics of four partitions each, asked for ten times."""
    client = await _kafka(broker)
    await _topics(client, 5000, 4)
    HELD.reset()
    for _ in range(10):
        client.say(ApiKey.METADATA, 9, m.MetadataRequest(topics=None))
    for _ in range(10):
        await client.hear()


async def create_many(broker: Broker) -> None:
    client = await _kafka(broker)
    HELD.reset()
    made = [
        m.CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        for _ in range(PARTS)
    ]
    await client.ask(ApiKey.CREATE_TOPICS, 5, m.CreateTopicsRequest(topics=made, timeout_ms=60_000))


async def delete_many(broker: Broker) -> None:
    client = await _kafka(broker)
    HELD.reset()
    await client.ask(ApiKey.DELETE_TOPICS, 4, m.DeleteTopicsRequest(topic_names=_names(PARTS), timeout_ms=60_000))


async def describe_configs(broker: Broker) -> None:
    """One topic, 100,000 times, and then 100,000 names of one topic's configs."""
    client = await _kafka(broker)
    await _topics(client, 1)
    HELD.reset()
    resource = m.DescribeConfigsRequest.DescribeConfigsResource
    many = [resource(resource_type=2, resource_name="t0", configuration_keys=None) for _ in range(2000)]
    await client.ask(ApiKey.DESCRIBE_CONFIGS, 1, m.DescribeConfigsRequest(resources=many))
    keys = [resource(resource_type=2, resource_name="t0", configuration_keys=_names(PARTS))]
    await client.ask(ApiKey.DESCRIBE_CONFIGS, 1, m.DescribeConfigsRequest(resources=keys))


async def alter_configs(broker: Broker) -> None:
    client = await _kafka(broker)
    await _topics(client, 1)
    HELD.reset()
    request = m.IncrementalAlterConfigsRequest
    configs = [request.AlterableConfig(name=name, config_operation=0, value="1") for name in _names(PARTS)]
    await client.ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        0,
        request(resources=[request.AlterConfigsResource(resource_type=2, resource_name="t0", configs=configs)]),
    )


async def list_offsets(broker: Broker) -> None:
    client = await _kafka(broker)
    await _topics(client, 1)
    HELD.reset()
    request = m.ListOffsetsRequest
    parts = [request.ListOffsetsPartition(partition_index=at, timestamp=-1) for at in range(MANY)]
    topics = [request.ListOffsetsTopic(name="t0", partitions=parts)]
    await client.ask(ApiKey.LIST_OFFSETS, 3, request(replica_id=-1, topics=topics))


async def offset_commit(broker: Broker) -> None:
    client = await _kafka(broker)
    await _topics(client, 1)
    HELD.reset()
    request = m.OffsetCommitRequest
    parts = [
        request.OffsetCommitRequestPartition(partition_index=at, committed_offset=1, committed_metadata="")
        for at in range(MANY)
    ]
    topics = [request.OffsetCommitRequestTopic(name="t0", partitions=parts)]
    await client.ask(
        ApiKey.OFFSET_COMMIT,
        5,
        request(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=topics),
    )
    topics = [request.OffsetCommitRequestTopic(name=name, partitions=parts[:1]) for name in _names(PARTS)]
    await client.ask(
        ApiKey.OFFSET_COMMIT,
        5,
        request(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=topics),
    )


async def offset_fetch(broker: Broker) -> None:
    client = await _kafka(broker)
    await _topics(client, 1)
    HELD.reset()
    request = m.OffsetFetchRequest
    topics = [request.OffsetFetchRequestTopic(name="t0", partition_indexes=list(range(MANY)))]
    await client.ask(ApiKey.OFFSET_FETCH, 5, request(group_id="g", topics=topics))
    topics = [request.OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in _names(PARTS)]
    await client.ask(ApiKey.OFFSET_FETCH, 5, request(group_id="g", topics=topics))


async def add_partitions_to_txn(broker: Broker) -> None:
    client = await _kafka(broker)
    await _topics(client, 1)
    frame = await client.ask(
        ApiKey.INIT_PRODUCER_ID, 1, m.InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
    )
    producer = int.from_bytes(frame[10:18], "big")
    HELD.reset()
    request = m.AddPartitionsToTxnRequest
    topics = [request.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in _names(PARTS // 2)] + [
        request.AddPartitionsToTxnTopic(name="t0", partitions=list(range(MANY // 2)))
    ]
    await client.ask(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        1,
        request(
            v3_and_below_transactional_id="tx",
            v3_and_below_producer_id=producer,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=topics,
        ),
    )


async def fetch_many(broker: Broker) -> None:
    client = await _kafka(broker)
    await _topics(client, 1)
    HELD.reset()
    request = m.FetchRequest
    parts = [request.FetchPartition(partition=at, fetch_offset=0, partition_max_bytes=1000) for at in range(MANY)]
    topics = [request.FetchTopic(topic="t0", partitions=parts)]
    await client.ask(ApiKey.FETCH, 4, request(replica_id=-1, max_wait_ms=0, min_bytes=0, topics=topics))
    topics = [request.FetchTopic(topic=name, partitions=parts[:1]) for name in _names(PARTS)]
    await client.ask(ApiKey.FETCH, 4, request(replica_id=-1, max_wait_ms=0, min_bytes=0, topics=topics))


def _records(count: int, size: int = 10, keyed: bool = False) -> bytes:
    return bytes(
        build_batch([Record(at, 1, b"%d" % at if keyed else None, bytes(size), []) for at in range(count)])
    )


async def produce_many(broker: Broker) -> None:
    """50,000 partitions that are not there, and batches of 100,000 records for one that is."""
    client = await _kafka(broker)
    await _topics(client, 1)
    HELD.reset()
    request = m.ProduceRequest
    one = _records(1)
    parts = [request.PartitionProduceData(index=at, records=one) for at in range(MANY // 2)]
    topics = [request.TopicProduceData(name="t0", partition_data=parts)]
    await client.ask(ApiKey.PRODUCE, 5, request(acks=-1, timeout_ms=1000, topic_data=topics))
    large = [request.PartitionProduceData(index=0, records=_records(MANY))]
    for _ in range(3):
        client.say(
            ApiKey.PRODUCE,
            5,
            request(
                acks=-1, timeout_ms=1000, topic_data=[request.TopicProduceData(name="t0", partition_data=large)]
            ),
        )
    for _ in range(3):
        await client.hear()


async def many_keys_for_key_shared(broker: Broker) -> None:
    """A batch of 50,000 records with a key each, for a consumer of a key-shared subscription."""
    client = await _kafka(broker)
    await _topics(client, 1)
    consumer = await Pulsar(broker.port("pulsar")).open()
    topic = "persistent://public/default/t0-partition-0"
    await consumer.subscribe(topic, api.CommandSubscribe.Key_Shared)
    HELD.reset()
    request = m.ProduceRequest
    large = [request.PartitionProduceData(index=0, records=_records(50_000, keyed=True))]
    await client.ask(
        ApiKey.PRODUCE,
        5,
        request(acks=-1, timeout_ms=1000, topic_data=[request.TopicProduceData(name="t0", partition_data=large)]),
    )
    (at,) = await consumer.take()
    consumer.ack([_with_set(at, [0x5555555555555555] * -(-50_000 // 64))])
    await consumer.answered()


async def kafka_batch_for_pulsar(broker: Broker) -> None:
    """Batches of 100,000 records, translated for one of the other protocol."""
    client = await _kafka(broker)
    await _topics(client, 1)
    request = m.ProduceRequest
    large = [request.PartitionProduceData(index=0, records=_records(MANY))]
    for _ in range(3):
        await client.ask(
            ApiKey.PRODUCE,
            5,
            request(
                acks=-1, timeout_ms=1000, topic_data=[request.TopicProduceData(name="t0", partition_data=large)]
            ),
        )
    consumer = await Pulsar(broker.port("pulsar")).open()
    await consumer.subscribe("persistent://public/default/t0-partition-0", api.CommandSubscribe.Exclusive)
    HELD.reset()
    await consumer.take(3)


async def join_group(broker: Broker) -> None:
    client = await _kafka(broker)
    HELD.reset()
    request = m.JoinGroupRequest
    protocols = [request.JoinGroupRequestProtocol(name=name, metadata=b"x") for name in _names(PARTS)]
    await client.ask(
        ApiKey.JOIN_GROUP,
        2,
        request(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=protocols,
        ),
    )


async def groups_by_name(broker: Broker) -> None:
    client = await _kafka(broker)
    HELD.reset()
    await client.ask(ApiKey.DESCRIBE_GROUPS, 3, m.DescribeGroupsRequest(groups=_names(PARTS)))
    await client.ask(ApiKey.DELETE_GROUPS, 1, m.DeleteGroupsRequest(groups_names=_names(PARTS)))
    await client.ask(ApiKey.FIND_COORDINATOR, 4, m.FindCoordinatorRequest(coordinator_keys=_names(PARTS)))


async def lists_of_topics(broker: Broker) -> None:
    """10,000 topics: the lists of Pulsar's clients, a hundred times at once, and the pages of the admin API."""
    await _topics(await _kafka(broker), 10_000)
    client = await Pulsar(broker.port("pulsar")).open()
    HELD.reset()
    for at in range(50):
        client.say(api.CommandGetTopicsOfNamespace(request_id=at, namespace="public/default"))
    for _ in range(50):
        await client.until(api.CommandGetTopicsOfNamespaceResponse)
    for at in range(20):
        client.say(
            api.CommandWatchTopicList(
                request_id=at, watcher_id=at, namespace="public/default", topics_pattern="public/default/t.*"
            )
        )
    for _ in range(20):
        await client.until(api.CommandWatchTopicListSuccess)


async def admin_pages(broker: Broker) -> None:
    await _topics(await _kafka(broker), 10_000)
    HELD.reset()
    for path in (
        "/admin/v2/persistent/public/default",
        "/admin/v2/persistent/public/default/partitioned",
        "/admin/v2/namespaces/public/default/topics",
        "/metrics",
        "/openapi.json",
        "/admin/v2/namespaces/public",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port("http"))
        writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        await reader.read()
        writer.close()


async def _turn() -> None:
    pass


async def main() -> None:
    gc.disable()  # the collector would look at the objects of the client too
    asyncio.Handle._run = _watched  # type: ignore[method-assign]
    chosen = sys.argv[1:] or list(ATTACKS)
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            broker = Broker(str(Path(folder) / "data"))
            broker.start()
            failed = ""
            try:
                await asyncio.wait_for(ATTACKS[name](broker), 300)
            except Exception as bad:
                failed = f"  failed: {bad!r}"
            broker.call(_turn)  # the last callback is measured when it has ended
            print(
                f"{name:32} {HELD.longest_s * 1000:9.1f} ms of {HELD.total_s:6.2f} s  {HELD.where[:110]}{failed}"
            )
            broker.stop()


ATTACKS: dict[str, Callable[[Broker], Coroutine[Any, Any, None]]] = {
    work.__name__: work
    for work in (
        acks_shared,
        acks_key_shared,
        acks_exclusive,
        acks_then_redelivered,
        acks_in_one_command,
        acks_of_many_batches,
        redeliver_many,
        redeliver_with_inbox,
        properties_of_a_producer,
        metadata_of_named,
        metadata_of_all,
        create_many,
        delete_many,
        describe_configs,
        alter_configs,
        list_offsets,
        offset_commit,
        offset_fetch,
        add_partitions_to_txn,
        fetch_many,
        produce_many,
        many_keys_for_key_shared,
        kafka_batch_for_pulsar,
        join_group,
        groups_by_name,
        lists_of_topics,
        admin_pages,
    )
}

if __name__ == "__main__":
    asyncio.run(main())
