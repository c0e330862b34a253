"""The clients of simulated brokers: producers and consumers over Pulsar's protocol, who record all they see.

They are Weir's own clients with what an application adds: a producer keeps what was not answered and sends it
again, with its sequence ids and in the same batches; a consumer connects anew, acknowledges in every way, gives
back, seeks, and leaves with or without saying so.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from weir.client.connection import BrokerConnection
from weir.client.consumer import Consumer, Inbox, PartConsumer, Subscribing
from weir.client.messages import Incoming, Outgoing
from weir.client.producer import TopicProducer
from weir.client.pulsar import PulsarClient
from weir.client.settings import ClientSettings, ConsumerSettings, ProducerSettings
from weir.model.batch import HeldId
from weir.model.errors import ConnectionLostError, InvariantError, WeirError
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock, Runtime
from weir.testing.broker_cluster import BrokerCluster
from weir.testing.broker_history import Place, place_of
from weir.testing.clock import EPOCH_S
from weir.testing.history import make_payload, payload_id
from weir.testing.log_history import Kind
from weir.testing.operations import Pending
from weir.testing.workload import Shared
from weir.wire.pulsar.ids import EARLIEST, MessageId
from weir.wire.pulsar.proto import api

CLIENT = ClientSettings(connect_timeout_s=1.0, request_timeout_s=2.0, keep_alive_s=1.0)
TYPES = {
    "exclusive": api.CommandSubscribe.Exclusive,
    "shared": api.CommandSubscribe.Shared,
    "failover": api.CommandSubscribe.Failover,
    "key-shared": api.CommandSubscribe.Key_Shared,
}
#: Acknowledgements that say "everything up to here" are not for these.
INDIVIDUAL = ("shared", "key-shared")
_ANSWER_S = 3.0
_WINDOW = 12


class BrokerShared(Shared):
    """What the clients of one run know of each other."""

    def __init__(self, cluster: BrokerCluster) -> None:
        super().__init__(cluster.history, cluster.broker_plan.storage)
        self.cluster = cluster
        self.story = cluster.story
        self.broker_plan = cluster.broker_plan
        #: The last moment, in virtual time, at which something may come due.
        self.last_due_s = 0.0

    def some_url(self, rng: Random) -> str:
        return self.cluster.url(rng.choice(self.cluster.broker_names))

    @property
    def now(self) -> float:
        return self.cluster.world.now


def full_name(topic: str) -> str:
    return str(TopicName.parse(topic))


# --- producing --------------------------------------------------------------------------------------------------


@dataclass
class _Message:
    number: int
    payload: bytes
    key: str | None
    #: Seconds from its first sending until it may be seen.
    delay_s: float | None
    cancel: bool
    due_s: float | None = None
    answered: bool = False


@dataclass
class Errand:
    """What a producer has to send, over all its lives: batches that stay the same however often they are sent."""

    name: str
    topic: str
    batches: list[list[_Message]] = field(default_factory=list)

    @property
    def first_open(self) -> int:
        """The first batch that was not answered."""
        done = (at for at, batch in enumerate(self.batches) if not all(m.answered for m in batch))
        return next(done, len(self.batches))


def make_errand(name: str, topic: str, rng: Random, shared: BrokerShared) -> Errand:
    plan = shared.broker_plan
    errand = Errand(name, topic)
    number = 0
    while number < plan.messages:
        delayed = rng.random() < plan.delayed
        size = 1 if delayed or not plan.batches else rng.choice((1, 2, 5))
        batch = []
        # Producers for key-shared subscriptions batch by key: a batch goes to one consumer.
        key = f"k{rng.randrange(plan.keys)}" if rng.random() < 0.9 else None
        for _ in range(size):
            delay_s = rng.choice((0.3, 1.5, 4.0)) if delayed else None
            cancel = delayed and rng.random() < plan.cancelled
            payload = make_payload(name, number, rng.randint(0, 60))
            batch.append(_Message(number, payload, key, delay_s, cancel))
            number += 1
        errand.batches.append(batch)
    return errand


class SimProducer(TopicProducer):
    """A producer that says which sequence id comes next, as applications do that send again."""

    def continue_with(self, number: int) -> None:
        self._sequence = number - 1

    @property
    def last_sequence(self) -> int:
        """What the broker said when it was opened."""
        return self._sequence


class Sender:
    """Sends an errand: connects, sends in order, connects anew whenever anything fails."""

    def __init__(self, errand: Errand, runtime: Runtime, rng: Random, shared: BrokerShared) -> None:
        self._errand = errand
        self._runtime = runtime
        self._clock: Clock = runtime.clock
        self._rng = rng
        self._shared = shared
        self._plan = shared.broker_plan
        self._failed: WeirError | None = None

    async def run(self) -> None:
        while self._errand.first_open < len(self._errand.batches):
            try:
                async with PulsarClient(self._runtime, self._shared.some_url(self._rng), CLIENT) as client:
                    await self._connected(client)
            except InvariantError:
                raise
            except WeirError:
                await self._clock.sleep(self._rng.uniform(0, 0.4))

    async def _connected(self, client: PulsarClient) -> None:
        topic = full_name(self._errand.topic)
        connection = await client._owner(topic)
        # With a name the broker knows what it has; without deduplication a name only gets into the way.
        settings = ProducerSettings(name=self._errand.name if self._plan.deduplication else None)
        producer = SimProducer(self._clock, connection, topic, settings)
        await producer.open()
        if self._plan.deduplication and self._rng.random() < 0.5:
            self._believe(producer.last_sequence)
        self._failed = None
        open_batches = self._errand.batches[self._errand.first_open :]
        under_way: list[asyncio.Future[MessageId]] = []
        for batch in open_batches:
            producer.continue_with(batch[0].number)
            under_way += [self._send(producer, message) for message in batch]
            self._shared.disturb_me()
            await self._clock.sleep(self._pause_s(len(open_batches)))
            under_way = [receipt for receipt in under_way if not receipt.done()]
            while len(under_way) > _WINDOW or self._failed is not None:
                await self._answers(under_way)
                under_way = [receipt for receipt in under_way if not receipt.done()]
        while under_way or self._failed is not None:
            await self._answers(under_way)
            under_way = [receipt for receipt in under_way if not receipt.done()]

    def _pause_s(self, batches: int) -> float:
        """Zero often, for many under way at once; else such that the errand takes the whole run."""
        each = self._plan.storage.duration_s / max(1, len(self._errand.batches))
        return self._rng.choice((0.0, 0.5, 1.5, 2.0)) * each

    async def _answers(self, under_way: "list[asyncio.Future[MessageId]]") -> None:
        if self._failed is not None:
            raise self._failed
        done, _ = await asyncio.wait(under_way, timeout=_ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise ConnectionLostError("no receipt came")

    def _believe(self, last: int) -> None:
        """Everything up to this number is stored, says the broker."""
        for batch in self._errand.batches:
            for message in batch:
                if message.number <= last and not message.answered:
                    self._begin(message).ok()
                    message.answered = True

    def _begin(self, message: _Message) -> Pending:
        if message.delay_s is not None and message.due_s is None:
            message.due_s = self._shared.now + message.delay_s
            self._shared.last_due_s = max(self._shared.last_due_s, message.due_s)
        return self._shared.story.begin(
            self._errand.name,
            Kind.PUBLISH,
            topic=self._errand.topic,
            payload=payload_id(message.payload),
            key=message.key,
            once=self._plan.deduplication,
            due_at=None if message.due_s is None else message.due_s - self._plan.skew_s,
        )

    def _send(self, producer: SimProducer, message: _Message) -> "asyncio.Future[MessageId]":
        pending = self._begin(message)
        deliver_at_ms = None if message.due_s is None else int((EPOCH_S + message.due_s) * 1000) + 1
        receipt = producer.send(Outgoing(message.payload, key=message.key, deliver_at_ms=deliver_at_ms))
        receipt.add_done_callback(self._answered(message, pending))
        return receipt

    def _answered(self, message: _Message, pending: Pending) -> "Callable[[asyncio.Future[MessageId]], None]":
        def done(receipt: "asyncio.Future[MessageId]") -> None:
            failure = receipt.exception()
            if failure is None:
                at = receipt.result()
                pending.ok(place=place_of(at) if at.ledger >= 0 else None)
                message.answered = True
                if message.cancel and at.ledger >= 0:
                    wanted = self._shared.cluster.to_cancel.setdefault(self._errand.topic, {})
                    wanted[HeldId(at.ledger, at.entry)] = payload_id(message.payload)
            elif isinstance(failure, WeirError) and not isinstance(failure, InvariantError):
                pending.failed(failure)
                self._failed = failure
            else:
                raise failure

        return done


# --- consuming --------------------------------------------------------------------------------------------------


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
        pending = self._begin(Kind.SUBSCRIBE)
        try:
            await part.open()
        except WeirError as failure:
            fail(pending, failure)
            raise
        pending.ok(broker=str(connection.url))
        self.consumer = Consumer(self._inbox, [part])

    def _begin(self, kind: Kind, place: Place | None = None) -> Pending:
        return self._story.begin(self.name, kind, topic=self.topic, subscription=self.subscription, place=place)

    def _arrived(self, message: Incoming) -> None:
        self._story.begin(
            self.name,
            Kind.DELIVER,
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
        pending = [self._begin(Kind.ACK, place_of(message.id)) for message in messages]
        await self._ask(pending, self._live.ack(*messages))

    async def ack_up_to(self, message: Incoming) -> None:
        await self._ask([self._begin(Kind.ACK_UP_TO, place_of(message.id))], self._live.ack_up_to(message))

    async def seek(self, at: MessageId) -> None:
        await self._ask([self._begin(Kind.SEEK, place_of(at))], self._live.seek(at))

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
            self._begin(Kind.REDELIVER, place_of(message.id)).ok()
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


def fail(pending: Pending, failure: WeirError) -> None:
    """Record an error that the client was told; a bug goes up instead."""
    pending.failed(failure)
    if isinstance(failure, InvariantError):
        raise failure
