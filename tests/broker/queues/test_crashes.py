"""Durable queues across brokers that are gone without a word: what was promised before holds after."""

import asyncio
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest

from weir.broker.api.queues import ConsumeRequest, NamespaceQueues, QueueMessages
from weir.ledger.client import LedgerClient
from weir.meta import keys
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.ids import BookieId
from weir.model.ledger import Quorum
from weir.model.messages import Message
from weir.model.queues import QueueDeclaration
from weir.model.topics import DEFAULT_NAMESPACE
from weir.runtime.interfaces import Runtime
from weir.server.compose.broker import compose_broker
from weir.stream.settings import StreamSettings
from weir.testing.broker.fake_storage import stage_composition
from weir.testing.storage.fakes import FakeBookiePool
from weir.testing.world.world import World, simulate
from weir.wire.formats.messages import decode_messages, encode_message
from weir.wire.metadata import BookieInfo, encode_bookie_info

ANN = "ann"
LEVELS = 3


class Cluster:
    """Brokers one after the other over the same storage: each takes over from one that does not know."""

    def __init__(self, runtime: Runtime, stack: AsyncExitStack) -> None:
        self._runtime = runtime
        self._stack = stack
        self._core = MemoryCore(runtime.clock)
        self._bookies = FakeBookiePool()
        self.settings = StreamSettings(quorum=Quorum(1, 1, 1))

    async def next_broker(self) -> NamespaceQueues:
        meta = MemoryMeta(self._core, self._runtime)
        info = BookieInfo(BookieId("b0"), "nowhere", 1)
        await meta.put(keys.bookie_writable(info.bookie_id), encode_bookie_info(info))
        ledgers = LedgerClient(self._runtime, meta, self._bookies)
        await ledgers.start()
        self._stack.push_async_callback(ledgers.close)
        how = stage_composition(None, streams=self.settings)
        broker = await compose_broker(self._runtime, meta, ledgers, how, self._stack)
        return await broker.queues.open(DEFAULT_NAMESPACE)


class History:
    """What was promised: which messages were confirmed, which were acknowledged for good."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.sent = 0
        self.level: dict[str, int] = {}
        self.confirmed: dict[str, None] = {}
        self.acked: dict[str, None] = {}
        self.acked_here: dict[str, None] = {}  # by the broker that is there now
        self.settled: dict[str, None] = {}  # so long before its broker was gone that it is durable
        self.held: list[tuple[int, str]] = []

    async def publish(self, queue: Any) -> None:
        texts = [f"m{self.sent + i}" for i in range(self.dice.randrange(1, 5))]
        self.sent += len(texts)
        encoded = []
        for text in texts:
            self.level[text] = self.dice.randrange(LEVELS + 1)
            headers = [("weir-priority", b"%d" % self.level[text])]
            encoded.append(encode_message(Message(None, text.encode(), headers)))
        persistent = self.dice.random() < 0.6  # others may be gone with their broker, and have their places if not
        await queue.publish(QueueMessages(encoded, persistent=persistent))
        if persistent:
            self.confirmed.update(dict.fromkeys(texts))

    def take(self, deliveries: list[Any]) -> list[tuple[int, str]]:
        found = []
        for delivery in deliveries:
            for index, message in enumerate(decode_messages(delivery.batch.payload)):
                if delivery.wanted is None or delivery.wanted >> index & 1:
                    text = bytes(message.value or b"").decode()
                    assert text not in self.settled, f"{text} was acknowledged, and came back"
                    found.append((delivery.batch.base_offset + index, text))
        return found

    async def receive(self, queue: Any, consumer: Any) -> None:
        if (await queue.counts()).ready:
            self.held += self.take(await consumer.next(self.dice.randrange(1, 6)))

    def answer(self, consumer: Any, *, acks: bool) -> None:
        some = [one for one in self.held if self.dice.random() < 0.5]
        self.held = [one for one in self.held if one not in some]
        (consumer.ack if acks else consumer.requeue)([(offset, offset + 1) for offset, _ in some])
        if acks:
            self.acked.update((text, None) for _, text in some)
            self.acked_here.update((text, None) for _, text in some)

    async def life(self, queue: Any) -> None:
        """Of one broker; it ends in the middle of everything."""
        consumer = await queue.consume(ConsumeRequest(ANN))
        self.held, self.acked_here = [], {}
        for _ in range(self.dice.randrange(5, 40)):
            match self.dice.randrange(6):
                case 0 | 1:
                    await self.publish(queue)
                case 2 | 3:
                    await self.receive(queue, consumer)
                case 4:
                    self.answer(consumer, acks=True)
                case 5:
                    self.answer(consumer, acks=False)
        if self.dice.random() < 0.5:  # longer than acknowledgements take to be durable
            await asyncio.sleep(5)
            self.settled.update(self.acked_here)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_confirmed_is_lost_and_nothing_acknowledged_comes_back(seed: int) -> None:
    async def scenario(runtime: Runtime) -> None:
        async with AsyncExitStack() as stack:
            cluster = Cluster(runtime, stack)
            history = History(seed)
            declaration = QueueDeclaration("q", arguments={"x-max-priority": LEVELS} if seed % 2 else {})
            for _ in range(4):
                queues = await cluster.next_broker()
                await history.life(await queues.declare(ANN, declaration))
            last = await (await cluster.next_broker()).get(ANN, "q")
            assert last.declaration == declaration
            consumer = await last.consume(ConsumeRequest(ANN))
            left: list[tuple[int, str]] = []
            while (await last.counts()).ready:
                left += history.take(await consumer.next(100))
            texts = [text for _, text in left]
            assert len(set(texts)) == len(texts)
            assert history.confirmed.keys() - history.acked.keys() <= set(texts)
            if seed % 2:
                assert [history.level[text] for text in texts] == sorted(
                    map(history.level.get, texts), reverse=True
                )
            else:
                assert left == sorted(left)

    async def main(world: World) -> None:
        await world.node("broker").start(scenario)

    simulate(seed, main)
