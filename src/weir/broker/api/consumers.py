"""The consumer interface: subscribe requests, deliveries, consumers, and the limit on consumers per
subscription."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from weir.broker.api.schemas import SchemaData
from weir.model.batch import Batch
from weir.model.errors import NotAuthorisedError, TooManyError
from weir.model.ids import value
from weir.model.subscriptions import MessageFilter


class SubscriptionType(Enum):
    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    FAILOVER = "failover"
    KEY_SHARED = "key-shared"


@dataclass(frozen=True, slots=True)
class StartAt:
    """The start position of a new subscription: an offset, the end of the topic ("latest"), or its start."""

    offset: int | None = None
    latest: bool = False


@dataclass(frozen=True, slots=True)
class KeyShared:
    """Sticky: the consumer names its hash ranges (both ends included). Auto-split: the broker divides the
    hashes."""

    sticky: bool = False
    ranges: Sequence[tuple[int, int]] = ()
    allow_out_of_order: bool = False


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    role: str
    subscription: str
    type: SubscriptionType = SubscriptionType.EXCLUSIVE
    consumer_name: str = ""
    priority: int = 0
    durable: bool = True
    #: Used when the subscription is new (or not durable).
    start: StartAt = field(default_factory=lambda: StartAt(latest=True))
    read_compacted: bool = False
    key_shared: KeyShared | None = None
    schema: SchemaData | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    #: Name and version of the client library, for stats.
    client_version: str = ""
    #: For shared subscriptions: the broker splits batches so that deliveries never exceed the credit, and delivers
    #: messages one by one.
    per_message: bool = False
    #: No other consumer of any kind may connect while this one is connected.
    alone: bool = False
    #: Whether it counts as a consumer; an uncounted one receives only messages that it requests with `take`.
    counted: bool = True
    #: Filter of this consumer; None: the subscription's filter. A filter that differs from the one of the
    #: subscription's other consumers raises SubscriptionBusyError; without other consumers, it becomes the
    #: subscription's filter. Each consumer of a queue has its own filter. An invalid filter raises FilterError.
    filter: MessageFilter | None = None
    #: Message groups in order: for a sole consumer, one `next` or `take` returns several messages of a group; the
    #: next messages of the group follow when all of these are acknowledged or redelivered.
    turns: bool = False


@value
class Delivery:
    """A stored batch for one consumer. `wanted`: a bit per message that this consumer must process (None: all).
    `redelivered`: the number of earlier deliveries."""

    batch: Batch
    wanted: int | None = None
    redelivered: int = 0


class Consumer(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def denied(self) -> NotAuthorisedError | None:
        """The authorization error, if the broker closed the consumer because its role lost the permission."""

    @property
    def subscription(self) -> str: ...

    @property
    def active(self) -> bool:
        """Whether it receives messages now: false for a standby of a failover subscription."""

    @property
    def mark_delete(self) -> int:
        """The subscription's mark-delete offset: all messages up to and including it are acknowledged; -1 if
        none."""

    @property
    def backlog(self) -> int:
        """The number of unacknowledged messages of the subscription."""

    @property
    def gets_parts(self) -> bool:
        """Whether it usually receives only some messages of a batch, because of a filter or of delivery message by
        message. Every consumer may receive the rest of a partly acknowledged batch."""

    async def next(self, credit: int) -> list[Delivery]:
        """Wait for deliveries that cost at most `credit` messages (a whole batch may exceed it by its size; the
        caller's credit then becomes negative). Cancellation loses nothing. From time to time it raises
        ReadStuckError while the next entry is unreadable; the next call continues to wait."""

    def take(self, credit: int) -> list[Delivery]:
        """Like `next` without waiting: an empty list if no delivery is ready. Invalid while a `next` waits."""

    def ack(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Acknowledge offsets, each range [first, end)."""

    def ack_up_to(self, offset: int) -> None:
        """Acknowledge everything up to and including the offset; not for shared and key-shared subscriptions."""

    def redeliver(self, ranges: Sequence[tuple[int, int]] | None = None, *, delay_ms: int | None = None) -> None:
        """Return failed messages for redelivery: these unacknowledged offsets, or all of this consumer's. The
        retry policy of the subscription sets the delay, or `delay_ms` if messages are delivered one by one. A
        message that reached the delivery limit of the policy becomes a dead letter instead."""

    def give_back(self, deliveries: list[Delivery]) -> None:
        """Return deliveries that the client has not seen, without counting a failure. A no-op after `close`."""

    def lease(self, ranges: Sequence[tuple[int, int]], span_ms: int) -> None:
        """For delivery one by one: detach these messages from this consumer and hide them from all consumers for
        `span_ms`. Messages without an acknowledgment by then have failed: they become ready at once, or dead
        letters. A repeated lease, by any consumer, restarts the span from now."""

    def reject(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Make them dead letters, regardless of their delivery counts. Leased messages are included."""

    async def seek(self, offset: int) -> None:
        """Move the subscription to the offset, and close its consumers: they must reconnect."""

    async def active_change(self, seen: bool) -> bool:
        """Wait until `active` differs from `seen`; return the new value."""

    async def persisted(self) -> None:
        """Wait until everything acknowledged so far survives a crash."""

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription; it must have no other consumers unless forced."""

    async def closed(self) -> str:
        """Wait until the broker closes it; return the reason."""

    async def close(self, *, failed: bool = False) -> None:
        """Close it and redeliver its unacknowledged messages to other consumers at once. `failed`: the client
        disconnected without closing, so a policy that counts failures counts one for each of these messages."""


log = logging.getLogger(__name__)

#: Most subscriptions remembered as already logged: a client may retry without end.
_MOST_LOGGED = 1000


class ConsumerLimit:
    """Limits the consumers of each subscription. `most`: consumers per subscription; 0: no limit."""

    def __init__(self, most: int = 0) -> None:
        self._most = most
        #: Number of refused consumers.
        self.refused = 0
        #: Subscriptions that already have a log line.
        self._logged: dict[str, None] = {}

    def check(self, consumers: int, topic: str, subscription: str) -> None:
        """TooManyError if a subscription with this many consumers is at the limit."""
        if not 0 < self._most <= consumers:
            return
        self.refused += 1
        what = f"subscription {subscription!r} of {topic} has {consumers} consumers, as many as it may have"
        if topic + subscription not in self._logged:
            self._logged[topic + subscription] = None
            if len(self._logged) > _MOST_LOGGED:
                del self._logged[next(iter(self._logged))]
            log.warning("%s (limits.subscription_consumers)", what)
        raise TooManyError(what, hint="limits.subscription_consumers is the limit")
