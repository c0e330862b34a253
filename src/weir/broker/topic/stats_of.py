"""Stats as values, from the live parts of a topic."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from weir.broker.api import ConsumerStats, Flow, ProducerStats, QueryProgress, SubscriptionStats, SubscriptionType
from weir.broker.dispatch.consumer import BrokerConsumer
from weir.broker.publish.producers import BrokerProducer
from weir.broker.topic.meters import Meter
from weir.stream.cursor import Cursor

_NOWHERE = -1


class AnySubscription(Protocol):
    """What all kinds of subscriptions can say of themselves."""

    name: str
    meter: Meter
    redelivered: int

    @property
    def filtered(self) -> int: ...

    @property
    def type(self) -> SubscriptionType | None: ...

    @property
    def durable(self) -> bool: ...

    @property
    def cursor(self) -> Cursor: ...

    @property
    def backlog(self) -> int: ...

    @property
    def consumers(self) -> Collection[BrokerConsumer]: ...

    @property
    def properties(self) -> Mapping[str, str]: ...


def flow_of(*meters: Meter) -> Flow:
    """All meters together."""
    rates = [meter.rates() for meter in meters]
    return Flow(
        sum(meter.messages for meter in meters),
        sum(meter.bytes for meter in meters),
        sum(rate[0] for rate in rates),
        sum(rate[1] for rate in rates),
    )


def producer_stats(producer: BrokerProducer) -> ProducerStats:
    request = producer.request
    flow = flow_of(producer.meter)
    return ProducerStats(
        producer.name,
        request.address,
        request.access,
        flow,
        producer.connected_ms,
        request.properties,
        request.client_version,
    )


def consumer_stats(consumer: BrokerConsumer) -> ConsumerStats:
    return ConsumerStats(
        name=consumer.name,
        address=consumer.request.address,
        flow=flow_of(consumer.meter),
        unacked=consumer.unacked,
        credit=max(0, consumer.demand),
        redelivered=consumer.redelivered,
        priority=consumer.priority,
        active=consumer.active,
        blocked=False,
        connected_ms=consumer.connected_ms,
        properties=consumer.request.properties,
        client_version=consumer.request.client_version,
    )


def unplaced(group: str, members: Sequence[ConsumerStats]) -> SubscriptionStats:
    """A consumer group that reads, and has not said how far it is: a subscription comes to be when it does."""
    return SubscriptionStats(
        name=group,
        type=None,
        durable=True,
        backlog=0,
        backlog_bytes=0,
        oldest_unacked_s=0.0,
        unacked=0,
        mark_delete=_NOWHERE,
        holes=0,
        read_at=_NOWHERE,
        flow=Flow(),
        redelivered=0,
        expired=0,
        consumers=tuple(members),
        placed=False,
    )


def subscription_stats(
    subscription: AnySubscription,
    read_at: int,
    backlog_bytes: int,
    *,
    oldest_s: float = 0.0,
    unacked: int = 0,
    expired: int = 0,
    members: Sequence[ConsumerStats] = (),
    query: QueryProgress | None = None,
) -> SubscriptionStats:
    """`members`: of the consumer group that the subscription is, besides consumers that are connected to it."""
    consumers = (*(consumer_stats(consumer) for consumer in subscription.consumers), *members)
    return SubscriptionStats(
        name=subscription.name,
        type=subscription.type,
        durable=subscription.durable,
        backlog=subscription.backlog,
        backlog_bytes=backlog_bytes,
        oldest_unacked_s=oldest_s,
        unacked=unacked,
        mark_delete=subscription.cursor.mark_delete,
        holes=subscription.cursor.holes,
        read_at=read_at,
        flow=flow_of(subscription.meter),
        redelivered=subscription.redelivered + sum(c.redelivered for c in consumers),
        expired=expired,
        filtered=subscription.filtered,
        consumers=consumers,
        properties=subscription.properties,
        query=query,
    )
