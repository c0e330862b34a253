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
from weir.server.config_load import load
from weir.server.standalone import Standalone
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey
from weir.wire.kafka.frames import request_frame
from weir.wire.kafka.frames import splitter as kafka_splitter
from weir.wire.kafka.headers import RequestHeader
from weir.wire.kafka.records_build import Record, build_batch
from weir.wire.pulsar.frames import decode_frame, encode_command, encode_with_message, splitter
from weir.wire.pulsar.message import seal_message
from weir.wire.pulsar.proto import Message, api

BATCH = 100_000


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
        self.up = Standalone(real_runtime(), load(assignments=self._settings).config)
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


_ = (Record, build_batch, Kafka)
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
    )
}

if __name__ == "__main__":
    asyncio.run(main())
