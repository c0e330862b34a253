"""Non-persistent topics: deliver a message to consumers with free capacity, and drop it otherwise."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from weir.broker.api.consumers import Delivery, KeyShared, SubscribeRequest, SubscriptionType
from weir.broker.api.producers import Outgoing, ProducerRequest, Receipt
from weir.broker.api.stats import Latency, TopicStats
from weir.broker.api.topics import AbortedTransaction, LogReader, Position, ProducerInfo, StoredTopic
from weir.broker.context import BrokerContext
from weir.broker.filters.message_filter import CompiledFilter, Masks, compiled
from weir.broker.publish.producers import BrokerProducer, Producers
from weir.broker.rates import Histogram, Meter, RateLimit, Traffic, traffic_of
from weir.broker.subscriptions.consumer import BrokerConsumer
from weir.broker.subscriptions.demand_ring import DemandRing
from weir.broker.subscriptions.dispatcher import UnackedLimits
from weir.broker.subscriptions.key_shared import key_map_of
from weir.broker.subscriptions.selectors import KeyMap, Ring, split_by_hash
from weir.broker.subscriptions.single_active import Standing
from weir.broker.subscriptions.subscription_state import wanted_filter
from weir.broker.topics.lifecycle import Liveness
from weir.broker.topics.log_readers import WholeLog
from weir.broker.topics.topic_stats import flow_of, producer_stats, subscription_stats
from weir.model.batch import Batch, bits_at
from weir.model.errors import (
    MessageTooLargeError,
    NotAllowedError,
    ProducerClosedError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TooManyError,
    TopicClosedError,
    WeirError,
)
from weir.model.policies import Policies, Rate
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.runtime.budgets import ByteShare
from weir.runtime.interfaces import Clock
from weir.runtime.waiters import Waiters
from weir.stream.cursor import Cursor


class PassingSubscription:
    """Subscription of a non-persistent topic. It has no state, so acknowledgements have no effect."""

    durable = False
    deals_parts = False

    def __init__(self, topic: "NonPersistentTopic", name: str, kind: SubscriptionType) -> None:
        self.name = name
        self.type = kind
        self.cursor = Cursor()
        self.meter = Meter(topic.clock, topic.flows.given, topic.name)
        self.dropped = 0
        self.redelivered = 0
        self.filtered = 0
        self.properties: Mapping[str, str] = {}
        self._filter: CompiledFilter | None = None
        self._topic = topic
        self._consumers: dict[int, BrokerConsumer] = {}
        self._count = 0
        self._ring = DemandRing(UnackedLimits())
        self._standing = Standing()
        self._active: BrokerConsumer | None = None
        self._map: KeyMap = Ring()
        self._sticky = False

    @property
    def consumers(self) -> Collection[BrokerConsumer]:
        return self._consumers.values()

    @property
    def backlog(self) -> int:
        return 0

    # --- consumers --------------------------------------------------------------------------------------

    def add(
        self, request: SubscribeRequest, batch_bytes: int, latency: Histogram, delivery_share: ByteShare | None
    ) -> BrokerConsumer:
        if self._consumers and request.type is not self.type:
            raise SubscriptionBusyError(f"subscription {self.name!r} has consumers of type {self.type.value}")
        if self._consumers and self.type is SubscriptionType.EXCLUSIVE:
            raise SubscriptionBusyError(f"subscription {self.name!r} has an exclusive consumer already")
        named = wanted_filter(request)
        wanted = compiled(named)
        if named is not None and self._consumers and wanted is not self._filter:
            raise SubscriptionBusyError(f"subscription {self.name!r} has consumers with another filter")
        if not self._consumers:
            self._filter = wanted
            self.properties = dict(request.subscription_properties)
        self.type = request.type
        self._count += 1
        clock = self._topic.clock
        consumer = BrokerConsumer(
            self,
            request,
            self._count,
            clock=clock,
            batch_bytes=batch_bytes,
            latency=latency,
            delivery_share=delivery_share,
        )
        self._join(consumer)
        return consumer

    def _join(self, consumer: BrokerConsumer) -> None:
        if self.type is SubscriptionType.KEY_SHARED:
            mode = consumer.request.key_shared or KeyShared()
            if self._consumers and mode.sticky != self._sticky:
                raise SubscriptionBusyError(
                    "the subscription's consumers use another key-shared mode (sticky or auto-split)"
                )
            key_map = self._map if self._consumers else key_map_of(mode)
            key_map.add(consumer.number, consumer.name, mode.ranges)  # raises if the ranges do not fit
            self._map, self._sticky = key_map, mode.sticky
        self._consumers[consumer.number] = consumer
        if self.type is SubscriptionType.FAILOVER:
            consumer.set_active(False)
            self._standing.add(consumer)
            self._choose()

    def _leave(self, consumer: BrokerConsumer) -> None:
        del self._consumers[consumer.number]
        self._ring.discard(consumer)
        if self.type is SubscriptionType.KEY_SHARED:
            self._map.remove(consumer.number)
        if self.type is SubscriptionType.FAILOVER:
            self._standing.discard(consumer)
            self._choose()

    def _choose(self) -> None:
        number = self._standing.active(self._topic.name.partition)
        chosen = None if number is None else self._consumers[number]
        if chosen is self._active:
            return
        if self._active is not None:
            self._active.set_active(False)
        self._active = chosen
        if chosen is not None:
            chosen.set_active(True)

    def expel(self, consumer: BrokerConsumer, reason: str) -> None:
        if not consumer.open:
            return
        consumer.take_inbox()
        self._leave(consumer)
        consumer.shut(reason)
        if not self._consumers:
            self._topic.forget(self)

    # --- delivering -------------------------------------------------------------------------------------

    def offer(self, batch: Batch) -> None:
        """Deliver the batch to a consumer that has capacity now; drop it otherwise."""
        if not self._consumers:
            return
        passing = None if self._filter is None else self._topic.masks.mask(self._filter, batch)
        if passing is not None:
            self.filtered += batch.count - passing.bit_count()
            if not passing:
                return
        match self.type:
            case SubscriptionType.SHARED:
                line = self._ring.line(0, 1)
                chosen = None if line is None else line.consumers[0]
                self._give(chosen, batch, passing)
                if chosen is not None:
                    self._ring.served(chosen)
            case SubscriptionType.KEY_SHARED:
                for owner, mask in self._shares(batch, passing).items():
                    self._give(None if owner is None else self._consumers[owner], batch, mask)
            case SubscriptionType.FAILOVER:
                self._give(self._active, batch, passing)
            case _:
                self._give(next(iter(self._consumers.values())), batch, passing)

    def _shares(self, batch: Batch, wanted: int | None) -> dict[int | None, int | None]:
        """Consumer number to the mask of its messages in the batch; a mask of None means all messages."""
        shares: dict[int | None, list[int]] = {}
        for key_hash, at in split_by_hash(self._topic.keys_of(batch), wanted):
            number = self._map.owner(key_hash)
            if at is None:
                return {number: wanted}
            shares.setdefault(number, []).extend(at)
        return {
            number: None if len(at) == batch.count else bits_at(at, batch.count) for number, at in shares.items()
        }

    def _give(self, consumer: BrokerConsumer | None, batch: Batch, mask: int | None) -> None:
        cost = batch.count if mask is None else mask.bit_count()
        if consumer is None or consumer.capacity <= 0:
            self.dropped += cost
        else:
            consumer.give(Delivery(batch, mask), cost)

    # --- consumer requests ------------------------------------------------------------------------------

    def demanded(self, consumer: BrokerConsumer) -> None:
        if self.type is SubscriptionType.SHARED:
            self._ring.add(consumer)

    def give_back(self, consumer: BrokerConsumer, deliveries: list[Delivery]) -> None:
        self.dropped += sum(delivery.batch.count for delivery in deliveries)

    def ack(self, consumer: BrokerConsumer, ranges: Sequence[tuple[int, int]]) -> None:
        pass

    def ack_up_to(self, consumer: BrokerConsumer, offset: int) -> None:
        pass

    def redeliver(
        self, consumer: BrokerConsumer, ranges: Sequence[tuple[int, int]] | None, *, delay_ms: int | None = None
    ) -> None:
        pass

    def lease(self, consumer: BrokerConsumer, ranges: Sequence[tuple[int, int]], span_ms: int) -> None:
        raise NotAllowedError("a non-persistent topic does not redeliver messages")

    def reject(self, consumer: BrokerConsumer, ranges: Sequence[tuple[int, int]]) -> None:
        pass

    async def seek(self, offset: int) -> None:
        raise NotAllowedError("a non-persistent topic does not support seek")

    async def persisted(self) -> None:
        pass

    async def unsubscribe(self, consumer: BrokerConsumer, *, force: bool) -> None:
        if len(self._consumers) > 1 and not force:
            raise SubscriptionBusyError(f"subscription {self.name!r} has other consumers")
        for other in list(self.consumers):
            self.expel(other, "unsubscribed")

    async def leave(self, consumer: BrokerConsumer, *, failed: bool = False) -> None:
        self.expel(consumer, "closed by the client")


class NonPersistentTopic:
    """Fills `api.Topic`. Offsets count the messages published since the topic was loaded."""

    def __init__(self, context: BrokerContext, name: TopicName, policies: Policies, epoch: int = 0) -> None:
        self._context = context
        self.leader_epoch = epoch
        self.clock: Clock = context.runtime.clock
        self._name = name
        self.policies = policies
        self.producers = Producers()
        self._subscriptions: dict[str, PassingSubscription] = {}
        self._rate = RateLimit(self.clock, policies.publish_rate or Rate(), context.settings.rate_burst_s)
        self.flows = context.flows
        self._meter = Meter(self.clock, context.flows.taken, name)
        self._latency = Histogram()
        self._delivered = 0
        self._dropped = 0
        self._end = 0
        self._name_count = 0
        self._growth = Waiters()
        #: Masks of the messages that pass each filter.
        self.masks = Masks()
        self._life = Liveness(name)

    @property
    def name(self) -> TopicName:
        return self._name

    @property
    def stored(self) -> StoredTopic | None:
        return None

    def reader(self) -> LogReader:
        return WholeLog(self)

    def traffic(self) -> Traffic:
        return traffic_of(self._meter, (s.meter for s in self._subscriptions.values()))

    @property
    def alive(self) -> bool:
        return self._life.alive

    def on_death(self, callback: Callable[[], None]) -> None:
        self._life.on_death(callback)

    async def apply(self, policies: Policies) -> None:
        self.policies = policies
        self._rate.set(policies.publish_rate or Rate())

    def keys_of(self, batch: Batch) -> "bytes | Sequence[bytes | None] | None":
        return self._context.keys_of(batch)

    @property
    def subscriptions(self) -> Mapping[str, PassingSubscription]:
        return self._subscriptions

    # --- producing --------------------------------------------------------------------------------------

    async def produce(self, request: ProducerRequest) -> BrokerProducer:
        self._life.check()
        self._context.guard.check(request.role, self._name, Action.PRODUCE)
        version = await self._context.schemas.for_producer(self._name, request.schema, role=request.role)
        self._life.check()
        self._context.guard.check(request.role, self._name, Action.PRODUCE)  # permissions may have changed
        if 0 < (self.policies.max_producers or 0) <= len(self.producers):
            raise TooManyError(f"{self._name} has reached its limit of producers")
        self._name_count += 1
        name = request.name or f"weir-{self._context.runtime.rng.getrandbits(48):012x}-{self._name_count}"
        producer = BrokerProducer(self, self.producers, name, request, version, clock=self.clock)
        self.producers.join(producer)
        return producer

    def publish(self, producer: BrokerProducer, outgoing: Outgoing) -> "asyncio.Future[Receipt]":
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        limit = self.policies.max_message_bytes or 0
        refusal: WeirError | None = None
        if not producer.open or not producer.admitted or not self.alive:
            refusal = ProducerClosedError(f"producer {producer.name!r} is closed, or has not been admitted yet")
        elif 0 < limit < len(outgoing.payload):
            refusal = MessageTooLargeError(f"a message has {len(outgoing.payload)} bytes, the limit is {limit}")
        elif outgoing.half is not None:
            refusal = NotAllowedError("a non-persistent topic does not support half messages")
        if refusal is not None:
            receipt.set_exception(refusal)
            return receipt
        batch = Batch(self._end, outgoing.count, outgoing.format, self.clock.wall_ms(), outgoing.payload)
        self._end += outgoing.count
        for subscription in list(self._subscriptions.values()):
            subscription.offer(batch)
        size = len(outgoing.payload)
        self._rate.spend(outgoing.count, size)
        self._meter.count(outgoing.count, size)
        producer.meter.count(outgoing.count, size)
        self._growth.wake()
        receipt.set_result(Receipt(batch.base_offset, (0, batch.base_offset)))
        return receipt

    def publish_all(
        self, producer: BrokerProducer, outgoings: Sequence[Outgoing]
    ) -> "asyncio.Future[Receipt] | None":
        return None

    def last_sequence(self, producer: str) -> int:
        return -1

    async def wait_capacity(self) -> None:
        while self._rate.limits and (delay := self._rate.delay_s()) > 0:
            await self.clock.sleep(delay)

    # --- consuming --------------------------------------------------------------------------------------

    async def subscribe(
        self, request: SubscribeRequest, *, delivery_share: ByteShare | None = None
    ) -> BrokerConsumer:
        self._life.check()
        self._context.guard.check(request.role, self._name, Action.CONSUME, subscription=request.subscription)
        await self._context.schemas.for_consumer(self._name, request.schema, role=request.role)
        self._life.check()
        self._context.guard.check(request.role, self._name, Action.CONSUME, subscription=request.subscription)
        if 0 < (self.policies.max_consumers or 0) <= sum(len(s.consumers) for s in self._subscriptions.values()):
            raise TooManyError(f"{self._name} has reached its limit of consumers")
        found = self._subscriptions.get(request.subscription)
        if found is not None:
            self._context.consumer_limit.check(len(found.consumers), str(self._name), found.name)
        subscription = found or PassingSubscription(self, request.subscription, request.type)
        consumer = subscription.add(request, self._context.settings.delivery_bytes, self._latency, delivery_share)
        self._subscriptions[request.subscription] = subscription
        return consumer

    def forget(self, subscription: PassingSubscription) -> None:
        """Remove a subscription after its last consumer has left."""
        if self._subscriptions.get(subscription.name) is subscription:
            del self._subscriptions[subscription.name]
            self._delivered += subscription.meter.messages
            self._dropped += subscription.dropped

    def subscription(self, name: str) -> PassingSubscription:
        found = self._subscriptions.get(name)
        if found is None:
            raise SubscriptionNotFoundError(f"{self._name} has no subscription {name!r}")
        return found

    # --- offsets ----------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self._end

    @property
    def end_offset(self) -> int:
        return self._end

    @property
    def terminated(self) -> bool:
        return False

    async def offset_at(self, moment_ms: int) -> int:
        return self._end

    def position_of(self, offset: int) -> tuple[int, int]:
        return (0, offset)

    def offset_of(self, ledger: int, entry: int) -> int:
        return self._end

    async def last_position(self) -> Position:
        return Position(-1, -1)

    async def read(self, offset: int, max_bytes: int) -> list[Batch]:
        return []

    async def wait_beyond(self, offset: int) -> None:
        while self._end <= offset:
            self._life.check()
            await self._growth.wait()

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        return (epoch, self._end) if 0 <= epoch <= self.leader_epoch else (-1, -1)

    def epoch_at(self, offset: int) -> int:
        return self.leader_epoch

    @property
    def stable_offset(self) -> int:
        return self.end_offset

    def aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        return []

    def idempotent_producers(self) -> list[ProducerInfo]:
        return []

    def on_growth(self, callback: Callable[[], None]) -> Callable[[], None]:
        return lambda: None  # no messages are stored for reads by offset

    # --- ending -----------------------------------------------------------------------------------------

    def check_unused(self) -> None:
        """NotAllowedError while the topic has producers or consumers."""
        if len(self.producers) or self._subscriptions:
            raise NotAllowedError(f"{self._name} has producers or consumers")

    async def close(self, reason: str = "the topic is unloaded") -> None:
        if self._life.dead:
            return
        self._life.die(reason)
        self.producers.close(reason)
        for subscription in list(self._subscriptions.values()):
            for consumer in list(subscription.consumers):
                subscription.expel(consumer, reason)
        self._growth.fail(TopicClosedError(f"{self._name} is closed: {reason}"))

    def stats(self) -> TopicStats:
        subscriptions = [subscription_stats(s, self._end, 0) for s in self._subscriptions.values()]
        published = flow_of(self._meter)
        return TopicStats(
            name=str(self._name),
            published=published,
            delivered=flow_of(*(s.meter for s in self._subscriptions.values())),
            storage_bytes=0,
            start_offset=self._end,
            end_offset=self._end,
            ledgers=0,
            terminated=False,
            duplicates=0,
            cache_hits=0,
            cache_misses=0,
            publish_latency=Latency(),
            dispatch_latency=Latency(*self._latency.snapshot()),
            producers=tuple(producer_stats(producer) for producer in self.producers.all),
            subscriptions=tuple(subscriptions),
            dropped=self._dropped + sum(s.dropped for s in self._subscriptions.values()),
        )
