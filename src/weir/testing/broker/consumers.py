"""Pulsar's consumers in simulations: they acknowledge in every way, give back, seek, and leave without a word."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from weir.client.access import ConsumerSettings
from weir.client.pulsar.client import PulsarClient
from weir.client.pulsar.connection import BrokerConnection
from weir.client.pulsar.consumer import Consumer, Inbox, PartConsumer, Subscribing
from weir.client.pulsar.messages import Incoming
from weir.model.errors import InvariantError, WeirError
from weir.runtime.interfaces import Runtime
from weir.testing.broker.history import MessagePosition, place_of
from weir.testing.broker.workload import CLIENT, BrokerShared, fail, full_name
from weir.testing.log_history import LogOpKind
from weir.testing.operations import Pending
from weir.testing.storage.history import payload_id
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.ids import EARLIEST, MessageId

TYPES = {
    "exclusive": api.CommandSubscribe.Exclusive,
    "shared": api.CommandSubscribe.Shared,
    "failover": api.CommandSubscribe.Failover,
    "key-shared": api.CommandSubscribe.Key_Shared,
}
#: Acknowledgements that say "everything up to here" are not for these.
INDIVIDUAL = ("shared", "key-shared")


class RecordingInbox(Inbox):
    """Tells of each message as it arrives."""

    def __init__(self, arrived: Callable[[Incoming], None]) -> None:
        super().__init__()
        self._arrived = arrived

    def put(self, message: Incoming) -> None:
        self._arrived(message)
        super().put(message)


class Handle:
    """One consumer of one subscription on one connection, all of it recorded."""

    def __init__(self, name: str, topic: str, subscription: str, shared: BrokerShared) -> None:
        self.name = name
        self.topic = topic
        self.subscription = subscription
        self._shared = shared
        self._story = shared.story
        self.consumer: Consumer | None = None
        self._inbox = RecordingInbox(self._arrived)

    async def open(self, connection: BrokerConnection, *, queue: int, label: str) -> None:
        asked = Subscribing(self.subscription, TYPES[self.subscription], earliest=True)
        settings = ConsumerSettings(queue=queue, name=label)
        part = PartConsumer(connection, full_name(self.topic), asked, settings, inbox=self._inbox, part=0)
        pending = self._begin(LogOpKind.SUBSCRIBE)
        try:
            await part.open()
        except WeirError as failure:
            fail(pending, failure)
            raise
        pending.ok(broker=str(connection.url))
        self.consumer = Consumer(self._inbox, [part])

    def _begin(self, kind: LogOpKind, place: MessagePosition | None = None) -> Pending:
        return self._story.begin(self.name, kind, topic=self.topic, subscription=self.subscription, place=place)

    def _arrived(self, message: Incoming) -> None:
        self._story.begin(
            self.name,
            LogOpKind.DELIVER,
            topic=self.topic,
            subscription=self.subscription,
            place=place_of(message.id),
            payload=payload_id(message.payload),
            key=None if message.key is None else message.key.decode(),
        ).ok()

    async def receive(self, timeout_s: float) -> Incoming | None:
        """The next message, if one comes soon."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._live.receive()
        except TimeoutError:
            return None

    @property
    def waiting(self) -> int:
        """Messages that `receive` gives at once."""
        return self._live.waiting()

    @property
    def _live(self) -> Consumer:
        if self.consumer is None:
            raise InvariantError("a handle is opened before it is used")
        return self.consumer

    async def ack(self, messages: list[Incoming]) -> None:
        pending = [self._begin(LogOpKind.ACK, place_of(message.id)) for message in messages]
        await self._ask(pending, self._live.ack(*messages))

    async def ack_up_to(self, message: Incoming) -> None:
        await self._ask([self._begin(LogOpKind.ACK_UP_TO, place_of(message.id))], self._live.ack_up_to(message))

    async def seek(self, at: MessageId) -> None:
        await self._ask([self._begin(LogOpKind.SEEK, place_of(at))], self._live.seek(at))

    async def _ask(self, pending: list[Pending], asking: Awaitable[None]) -> None:
        self._shared.disturb_me()
        try:
            await asking
        except WeirError as failure:
            for each in pending:
                fail(each, failure)
            raise
        for each in pending:
            each.ok()

    def redeliver(self, messages: list[Incoming]) -> None:
        for message in messages:
            self._begin(LogOpKind.REDELIVER, place_of(message.id)).ok()
        self._live.redeliver(*messages)


class Receiver:
    """A consumer that comes and goes."""

    def __init__(
        self, name: str, topic: str, subscription: str, runtime: Runtime, *, rng: Random, shared: BrokerShared
    ) -> None:
        self._name = name
        self._topic = topic
        self._subscription = subscription
        self._runtime = runtime
        self._rng = rng
        self._shared = shared
        #: Received on an earlier connection and not acknowledged there.
        self._left_over: list[Incoming] = []

    async def run(self) -> None:
        while True:
            try:
                async with PulsarClient(self._runtime, self._shared.some_url(self._rng), CLIENT) as client:
                    await self._connected(client)
            except InvariantError:
                raise
            except WeirError:
                pass
            await self._runtime.clock.sleep(self._rng.uniform(0, 0.5))

    async def _connected(self, client: PulsarClient) -> None:
        rng = self._rng
        connection = await client._owner(full_name(self._topic))
        handle = Handle(self._shared.next_handle(self._name), self._topic, self._subscription, self._shared)
        await handle.open(connection, queue=rng.choice((1, 3, 10, 100)), label=self._name)
        held: list[Incoming] = []
        try:
            if self._left_over and rng.random() < 0.5:
                await handle.ack(self._left_over)
            for _ in range(rng.randint(3, 60)):
                message = await handle.receive(rng.choice((0.05, 0.5)))
                if message is not None:
                    held.append(message)
                if await self._act(handle, held):
                    break
        finally:
            self._left_over = held[-5:]
        if rng.random() < 0.5 and handle.consumer is not None:
            await handle.consumer.close()

    async def _act(self, handle: Handle, held: list[Incoming]) -> bool:
        """Do something with what is held; answers whether the connection is to be left."""
        rng = self._rng
        if not held:
            return False
        dice = rng.random()
        if self._shared.broker_plan.seeks and rng.random() < 0.02:
            await handle.seek(rng.choice((EARLIEST, rng.choice(held).id)))
            return True
        if dice < 0.4:
            await self._ack_some(handle, held)
        elif dice < 0.5:
            back = [message for message in held if rng.random() < 0.5]
            handle.redeliver(back)
            entries = {(message.id.ledger, message.id.entry) for message in back}
            held[:] = [message for message in held if (message.id.ledger, message.id.entry) not in entries]
        elif dice < 0.6:
            await self._runtime.clock.sleep(rng.choice((0.02, 0.3)))
        return False

    async def _ack_some(self, handle: Handle, held: list[Incoming]) -> None:
        rng = self._rng
        if self._subscription not in INDIVIDUAL and rng.random() < 0.5:
            at = rng.randrange(len(held))
            await handle.ack_up_to(held[at])
            del held[: at + 1]
            return
        chosen = [message for message in held if rng.random() < 0.7]
        if not chosen:
            return
        await handle.ack(chosen)
        held[:] = [message for message in held if message not in chosen]
