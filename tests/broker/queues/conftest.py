"""Queues of one broker over fake bookies, in simulated time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from weir.broker.api.consumers import Delivery
from weir.broker.api.queues import ConsumeRequest, NamespaceQueues, QueueMessages
from weir.broker.queues.namespace_queues import LocalQueues
from weir.broker.security.authentication import SecuritySettings
from weir.model.ledger import Quorum
from weir.model.messages import Message
from weir.model.queues import QueueDeclaration
from weir.model.topics import DEFAULT_NAMESPACE, TopicName
from weir.runtime.interfaces import Runtime
from weir.server.compose.composed import ComposedBroker
from weir.stream.settings import StreamSettings
from weir.testing.broker.fake_storage import compose_on_fakes, stage_composition
from weir.testing.world.world import World, simulate
from weir.wire.formats.messages import decode_messages, encode_message

ANN = "ann"


@dataclass
class Stage:
    """A broker and the queues of `public/default`."""

    runtime: Runtime
    broker: ComposedBroker
    queues: NamespaceQueues
    #: Those that are one log each, without what stands around them.
    logs: LocalQueues

    async def declare(self, name: str = "q", *, connection: str = "", **more: Any) -> Any:
        return await self.queues.declare(ANN, QueueDeclaration(name, **more), connection=connection)

    @staticmethod
    def messages(*texts: str, persistent: bool = True, priority: int | None = None, **more: Any) -> QueueMessages:
        headers = () if priority is None else (("weir-priority", b"%d" % priority),)
        encoded = [encode_message(Message(None, text.encode(), headers)) for text in texts]
        return QueueMessages(encoded, persistent=persistent, **more)

    async def publish(self, queue: Any, *texts: str, **more: Any) -> None:
        """As one entry."""
        assert await queue.publish(self.messages(*texts, **more)) == 0

    async def consumer(self, queue: Any, **more: Any) -> Any:
        return await queue.consume(ConsumeRequest(ANN, **more))

    @staticmethod
    def split(deliveries: Sequence[Delivery]) -> list[tuple[int, str, int]]:
        """(offset, text, redelivered) of each message, in the order of delivery."""
        found = []
        for delivery in deliveries:
            batch = delivery.batch
            for index, message in enumerate(decode_messages(batch.payload)):
                if delivery.wanted is None or delivery.wanted >> index & 1:
                    found.append((batch.base_offset + index, bytes(message.value).decode(), delivery.redelivered))
        return found

    async def receive(self, consumer: Any, count: int) -> list[tuple[int, str, int]]:
        """Exactly so many messages, as (offset, text, redelivered)."""
        found: list[tuple[int, str, int]] = []
        while len(found) < count:
            found += self.split(await consumer.next(count - len(found)))
        assert len(found) == count, found
        return found

    async def texts(self, consumer: Any, count: int) -> list[str]:
        return [text for _, text, _ in await self.receive(consumer, count)]

    @staticmethod
    async def nothing(consumer: Any) -> bool:
        """Whether nothing is delivered for a while."""
        try:
            async with asyncio.timeout(5):
                await consumer.next(1)
        except TimeoutError:
            return True
        return False

    async def counts(self, queue: Any) -> tuple[int, int, int]:
        """Ready, unacked, consumers."""
        now = await queue.counts()
        return (now.ready, now.unacked, now.consumers)

    async def topic(self, name: str = "q") -> Any:
        return await self.broker.broker.load(TopicName.parse(name))


Scenario = Callable[[Stage], Awaitable[None]]


@pytest.fixture
def run() -> Callable[..., None]:
    """Run a scenario on a node of a simulated world."""

    def run_it(scenario: Scenario, seed: int = 1, *, security: SecuritySettings | None = None, **how: Any) -> None:
        async def main(world: World) -> None:
            async def on_node(runtime: Runtime) -> None:
                async with AsyncExitStack() as stack:
                    composition = stage_composition(
                        security, streams=StreamSettings(quorum=Quorum(1, 1, 1)), **how
                    )
                    broker = await compose_on_fakes(runtime, composition, stack, bookies=1)
                    whole: Any = broker.queues
                    queues = await whole.open(DEFAULT_NAMESPACE)
                    logs = await whole.logs.open(DEFAULT_NAMESPACE)
                    await scenario(Stage(runtime, broker, queues, logs))

            await world.node("broker").start(on_node)

        simulate(seed, main)

    return run_it
