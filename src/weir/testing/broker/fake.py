"""A broker in memory, filling `weir.broker.api`: small enough to read, and told by a test how to behave.

One ledger per topic, one cursor per subscription; consumers of a subscription take from it in turn. Nothing is
authorised, rated or persisted. Tests of gateways run on it where the broker's own behaviour is beside the point.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from weir.broker.api.broker import BrokerFlows, Owner
from weir.broker.api.consumers import Delivery, SubscribeRequest, SubscriptionType
from weir.broker.api.producers import Outgoing, ProducerRequest, Receipt
from weir.broker.api.security import Identity
from weir.broker.api.stats import Flow, Latency, TopicStats
from weir.broker.api.topics import AbortedTransaction, LogReader, Position, ProducerInfo, StoredTopic
from weir.broker.prepared.decision_checks import DecisionCheckers
from weir.broker.standalone import SoleBundles
from weir.broker.topics.log_readers import WholeLog
from weir.model.batch import Batch
from weir.model.errors import (
    ConsumerClosedError,
    NotAuthenticatedError,
    NotAuthorisedError,
    NotOwnerError,
    SubscriptionBusyError,
    WeirError,
)
from weir.model.registry import BrokerInfo
from weir.model.topics import TopicName
from weir.runtime.budgets import ByteShare
from weir.runtime.waiters import Waiters

LEDGER = 7


class FakeProducer:
    """Stores at once, or when the test says so."""

    def __init__(self, topic: "FakeTopic", request: ProducerRequest) -> None:
        self.topic = topic
        self.request = request
        self.name = request.name or f"fake-{len(topic.producers)}"
        self.last_sequence = -1
        self.topic_epoch: int | None = None
        self.schema_version = b""
        self.may_send = asyncio.Event()
        self.may_send.set()
        self.rested = asyncio.Event()
        self.rested.set()
        self.waiting: list[tuple[Outgoing, asyncio.Future[Receipt]]] = []
        self._closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def open(self) -> bool:
        return not self._closed.done()

    async def wait_admitted(self) -> None:
        await self.may_send.wait()

    def publish(self, outgoing: Outgoing) -> "asyncio.Future[Receipt]":
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self.waiting.append((outgoing, receipt))
        if not self.topic.held_back:
            self.store()
        return receipt

    def publish_all(self, outgoings: Sequence[Outgoing]) -> "asyncio.Future[Receipt] | None":
        return None

    def store(self, failure: WeirError | None = None) -> None:
        """Store all that waits, or fail it."""
        waiting, self.waiting = self.waiting, []
        for outgoing, receipt in waiting:
            if receipt.done():
                continue
            if failure is not None:
                receipt.set_exception(failure)
            else:
                offset = self.topic.append(outgoing)
                receipt.set_result(Receipt(offset, self.topic.position_of(offset)))

    async def wait_capacity(self) -> None:
        await self.rested.wait()

    def shut(self, reason: str) -> None:
        """The broker closes it."""
        if not self._closed.done():
            self._closed.set_result(reason)
            self.topic.producers.remove(self)

    async def closed(self) -> str:
        return await asyncio.shield(self._closed)

    async def close(self) -> None:
        self.shut("closed by the client")


class FakeConsumer:
    """Takes from its subscription what is next."""

    gets_parts = False

    def __init__(
        self, topic: "FakeTopic", request: SubscribeRequest, delivery_share: ByteShare | None = None
    ) -> None:
        self.topic = topic
        self.request = request
        self._share = delivery_share
        self.name = request.consumer_name
        self.subscription = request.subscription
        self.denied: NotAuthorisedError | None = None
        self.acked: list[tuple[int, int]] = []
        self.acked_up_to: list[int] = []
        self.redelivered: list[Sequence[tuple[int, int]] | None] = []
        #: Cleared: what is acknowledged is not stored until a test sets it.
        self.durable = asyncio.Event()
        self.durable.set()
        self.active = True
        self._activity = asyncio.Event()
        self._closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def mark_delete(self) -> int:
        return self.topic.cursors[self.subscription] - 1

    @property
    def backlog(self) -> int:
        return self.topic.end_offset - self.topic.cursors[self.subscription]

    async def next(self, credit: int) -> list[Delivery]:
        while not (found := self.take(credit)):
            await self.topic.change()
        return found

    def take(self, credit: int) -> list[Delivery]:
        if self._closed.done():
            raise ConsumerClosedError(f"closed: {self._closed.result()}")
        found: list[Delivery] = []
        for batch in self.topic.batches:
            if batch.base_offset >= self.topic.cursors[self.subscription] and credit > 0:
                found.append(Delivery(batch))
                credit -= batch.count
        if found:
            self.topic.cursors[self.subscription] = found[-1].batch.end_offset
            if self._share is not None:
                self._share.acquire(sum(len(delivery.batch.payload) for delivery in found))
        return found

    def ack(self, ranges: Sequence[tuple[int, int]]) -> None:
        self.acked += ranges

    def ack_up_to(self, offset: int) -> None:
        self.acked_up_to.append(offset)

    def redeliver(self, ranges: Sequence[tuple[int, int]] | None = None, *, delay_ms: int | None = None) -> None:
        self.redelivered.append(ranges)

    def give_back(self, deliveries: list[Delivery]) -> None:
        raise NotImplementedError

    def lease(self, ranges: Sequence[tuple[int, int]], span_ms: int) -> None:
        raise NotImplementedError

    def reject(self, ranges: Sequence[tuple[int, int]]) -> None:
        self.ack(ranges)

    async def seek(self, offset: int) -> None:
        self.topic.cursors[self.subscription] = offset
        for consumer in [c for c in self.topic.consumers if c.subscription == self.subscription]:
            consumer.shut("moved")

    def set_active(self, active: bool) -> None:
        self.active = active
        self._activity.set()

    async def active_change(self, seen: bool) -> bool:
        while self.active == seen:
            self._activity.clear()
            await self._activity.wait()
        return self.active

    async def persisted(self) -> None:
        await self.durable.wait()

    async def unsubscribe(self, *, force: bool = False) -> None:
        self.shut("unsubscribed")
        self.topic.cursors.pop(self.subscription, None)

    def shut(self, reason: str) -> None:
        """The broker closes it."""
        if not self._closed.done():
            self._closed.set_result(reason)
            self.topic.consumers.remove(self)
            self.topic.changed()

    async def closed(self) -> str:
        return await asyncio.shield(self._closed)

    async def close(self, *, failed: bool = False) -> None:
        self.shut("closed by the client")


class FakeTopic:
    """Batches in a list."""

    def __init__(self, name: TopicName) -> None:
        self.name = name
        self.batches: list[Batch] = []
        self.cursors: dict[str, int] = {}
        self.producers: list[FakeProducer] = []
        self.consumers: list[FakeConsumer] = []
        #: Set: what is published waits until a test says `producer.store()`.
        self.held_back = False
        #: Set: wait-for-exclusive producers wait until a test sets `may_send`.
        self.busy = False
        self.start_offset = 0
        self.terminated = False
        self.leader_epoch = 0
        #: What it says of idempotent producers.
        self.known_producers: list[ProducerInfo] = []
        self._waiters = Waiters()
        self._listeners: list[Callable[[], None]] = []

    @property
    def end_offset(self) -> int:
        return self.batches[-1].end_offset if self.batches else 0

    async def produce(self, request: ProducerRequest) -> FakeProducer:
        producer = FakeProducer(self, request)
        if self.busy:
            producer.may_send.clear()
        self.producers.append(producer)
        return producer

    @property
    def alive(self) -> bool:
        return True

    @property
    def stored(self) -> StoredTopic | None:
        return None

    def reader(self) -> LogReader:
        return WholeLog(self)

    def stats(self) -> TopicStats:
        end = self.end_offset
        return TopicStats(str(self.name), Flow(), Flow(), 0, 0, end, 1, False, 0, 0, 0, Latency(), Latency())

    async def subscribe(
        self, request: SubscribeRequest, *, delivery_share: ByteShare | None = None
    ) -> FakeConsumer:
        if request.type is SubscriptionType.EXCLUSIVE and any(
            consumer.subscription == request.subscription for consumer in self.consumers
        ):
            raise SubscriptionBusyError("there is a consumer already")
        start = self.end_offset if request.start.latest else request.start.offset or 0
        self.cursors.setdefault(request.subscription, start)
        consumer = FakeConsumer(self, request, delivery_share)
        self.consumers.append(consumer)
        return consumer

    def append(self, outgoing: Outgoing) -> int:
        offset = self.end_offset
        batch = Batch(offset, outgoing.count, outgoing.format, 1_700_000_000_000, outgoing.payload)
        self.batches.append(batch)
        self.changed()
        return offset

    def replace_last(self, **changes: object) -> None:
        """Change the last batch, as if it had been stored otherwise."""
        self.batches[-1] = replace(self.batches[-1], **changes)  # type: ignore[arg-type]

    async def change(self) -> None:
        await self._waiters.wait()

    def changed(self) -> None:
        self._waiters.wake()
        for listener in list(self._listeners):
            listener()

    @property
    def watchers(self) -> int:
        """How many want to be told when it grows."""
        return len(self._listeners)

    async def offset_at(self, moment_ms: int) -> int:
        return next((b.base_offset for b in self.batches if b.append_ms >= moment_ms), self.end_offset)

    def position_of(self, offset: int) -> tuple[int, int]:
        return (LEDGER, offset) if offset >= self.start_offset else (-1, -1)

    def offset_of(self, ledger: int, entry: int) -> int:
        if ledger < LEDGER:
            return self.start_offset
        return min(max(entry, self.start_offset), self.end_offset) if ledger == LEDGER else self.end_offset

    async def last_position(self) -> Position:
        if not self.batches:
            return Position(-1, -1)
        last = self.batches[-1]
        return Position(LEDGER, last.base_offset, last.count - 1 if last.count > 1 else -1)

    async def read(self, offset: int, max_bytes: int) -> list[Batch]:
        return [batch for batch in self.batches if batch.end_offset > offset][:1]

    async def wait_beyond(self, offset: int) -> None:
        while self.end_offset <= offset:
            await self.change()

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        return (epoch, self.end_offset) if 0 <= epoch <= self.leader_epoch else (-1, -1)

    def epoch_at(self, offset: int) -> int:
        return self.leader_epoch

    @property
    def stable_offset(self) -> int:
        return self.end_offset

    def aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        return []

    def idempotent_producers(self) -> list[ProducerInfo]:
        return self.known_producers

    def on_growth(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)


class FakeBroker:
    """Topics that come to be when they are asked for."""

    def __init__(self) -> None:
        self._bundles = SoleBundles("fake")
        self.served: dict[TopicName, FakeTopic] = {}
        self.flows = BrokerFlows()
        self.half_checkers = DecisionCheckers()
        self.partitioned: dict[TopicName, int] = {}
        #: Topics that other brokers serve, and who these are.
        self.elsewhere: dict[TopicName, Owner] = {}
        self.others: list[BrokerInfo] = []
        self.former: list[BrokerInfo] = []
        #: Who is behind which credentials; None: everyone may come.
        self.identities: dict[bytes, Identity] | None = None
        #: Raised by every call that names a topic, if set.
        self.refusal: Exception | None = None
        #: Cleared: calls that name a topic take until it is set.
        self.answering = asyncio.Event()
        self.answering.set()

    def at(self, name: str) -> FakeTopic:
        """A topic, for the test to look at and to change."""
        parsed = TopicName.parse(name)
        if parsed not in self.served:
            self.served[parsed] = FakeTopic(parsed)
        return self.served[parsed]

    async def topic(self, name: TopicName, *, role: str, create: bool = True) -> FakeTopic:
        await self._answer()
        if name in self.elsewhere:
            raise NotOwnerError(f"{name} is served elsewhere", listeners=self.elsewhere[name].listeners)
        return self.at(str(name))

    async def load(self, name: TopicName, *, create: bool = True) -> FakeTopic:
        return await self.topic(name, role="", create=create)

    async def stats(self, name: TopicName) -> TopicStats:
        return (await self.topic(name, role="")).stats()

    async def unload(self, name: TopicName, reason: str = "the topic is unloaded") -> None:
        await self._answer()

    async def partitions(self, name: TopicName, *, role: str, create: bool = True) -> int:
        await self._answer()
        return self.partitioned.get(name, 0)

    async def owner(self, name: TopicName, *, role: str) -> Owner:
        await self._answer()
        return self.owner_now(name)

    def owner_now(self, name: TopicName) -> Owner:
        return self.elsewhere.get(name, Owner(True, broker_id="fake", node_id=0))

    def owners_now(self, name: TopicName, partitions: Sequence[int]) -> list[Owner]:
        return [self.owner_now(name.at(index)) for index in partitions]

    def brokers(self) -> list[BrokerInfo]:
        return [BrokerInfo("fake", ""), *self.others]

    def former_brokers(self) -> list[BrokerInfo]:
        return self.former

    @property
    def bundles(self) -> SoleBundles:
        return self._bundles

    async def topics(self, namespace: str, *, role: str, pattern: str | None = None) -> list[TopicName]:
        return [name for name in self.served if str(name.namespace) == namespace]

    def served_now(self, name: TopicName) -> FakeTopic | None:
        return self.served.get(name)

    @property
    def loaded(self) -> list[FakeTopic]:
        return list(self.served.values())

    async def delete(self, name: TopicName, *, force: bool = False) -> None:
        await self._answer()
        for part in [known for known in self.served if known.base == name.base]:
            del self.served[part]

    async def authenticate(self, method: str, credentials: bytes, *, certificate: bytes | None = None) -> Identity:
        if self.identities is None:
            return Identity("anonymous")
        if method == "password":  # whatever the name
            credentials = credentials.partition(b"\0")[2]
        if credentials not in self.identities:
            raise NotAuthenticatedError("nobody is known by these credentials")
        return self.identities[credentials]

    async def _answer(self) -> None:
        await self.answering.wait()
        if self.refusal is not None:
            raise self.refusal
