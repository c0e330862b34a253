"""A Pulsar subscription on a topic of Kafka's producers, in simulations."""

import asyncio

from weir.client.access import ClientSettings, ConsumerSettings
from weir.client.pulsar.client import PulsarClient
from weir.client.pulsar.consumer import Consumer, PartConsumer, Subscribing
from weir.client.pulsar.messages import Incoming
from weir.model.topics import TopicName
from weir.testing.broker.consumers import RecordingInbox
from weir.testing.broker.node_settings import pulsar_url
from weir.testing.kafka.clients.calls import Part
from weir.testing.kafka.clients.workload import KafkaShared, Worker
from weir.testing.log_history import LogOpKind

SUBSCRIPTION = "along"
CLIENT = ClientSettings(connect_timeout_s=1.0, request_timeout_s=2.0, keep_alive_s=1.0)
_QUIET_S = 1.0


class Subscriber:
    """Receives, and acknowledges what it received."""

    def __init__(self, name: str, part: Part, shared: KafkaShared) -> None:
        self._name = name
        self._part = part
        self._shared = shared

    def url(self) -> str:
        return pulsar_url(self._shared.cluster.some_address)

    async def open(self, client: PulsarClient) -> Consumer:
        topic = str(TopicName.parse(self._part.topic).at(self._part.number))
        connection = await client._owner(topic)
        inbox = RecordingInbox(self._arrived)
        asked = Subscribing(SUBSCRIPTION, earliest=True)
        part = PartConsumer(connection, topic, asked, ConsumerSettings(queue=10), inbox=inbox, part=0)
        await part.open()
        return Consumer(inbox, [part])

    def _arrived(self, message: Incoming) -> None:
        self._shared.story.note(
            self._name, LogOpKind.DELIVER, part=str(self._part), payload=message.payload.decode()
        )

    async def drain(self, client: PulsarClient) -> None:
        """Take all that there is."""
        consumer = await self.open(client)
        while (message := await _soon(consumer, _QUIET_S)) is not None:
            await consumer.ack(message)
        await consumer.close()


class PulsarReader(Worker):
    """A consumer that comes and goes."""

    async def life(self, handle: str) -> None:
        subscriber = Subscriber(handle, self.shared.inputs[0], self.shared)
        async with PulsarClient(self.runtime, subscriber.url(), CLIENT) as client:
            consumer = await subscriber.open(client)
            for _ in range(self.rng.randint(3, 30)):
                message = await _soon(consumer, self.rng.choice((0.05, 0.5)))
                if message is not None and self.rng.random() < 0.8:
                    await consumer.ack(message)


async def _soon(consumer: Consumer, timeout_s: float) -> Incoming | None:
    try:
        async with asyncio.timeout(timeout_s):
            return await consumer.receive()
    except TimeoutError:
        return None
