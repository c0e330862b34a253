"""Consuming: subscriptions, what they are asked for, and what they deliver.

The limit on consumers per subscription, which all subscriptions of a broker share.
"""

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
    """Where a new subscription begins: at an offset, or at the end of the topic ("latest"), or at its start."""

    offset: int | None = None
    latest: bool = False


@dataclass(frozen=True, slots=True)
class KeyShared:
    """Sticky: the consumer names its hash ranges (both ends included). Auto-split: the broker divides."""

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
    #: What the client calls itself, for stats.
    client_version: str = ""
    #: Of a shared one: credit is never exceeded, by cutting batches up; messages are dealt one by one.
    per_message: bool = False
    #: There shall be no other consumer, of whatever kind, while this one is there.
    alone: bool = False
    #: Whether it counts as a consumer; one that does not gets only what it takes itself.
    counted: bool = True
    #: Which messages it wants; None: as the subscription has it. Another filter than the subscription's other
    #: consumers have is refused (SubscriptionBusyError); where there are none, it holds from now on. Of a queue's
    #: consumers each has its own. A wrong one is a FilterError.
    filter: MessageFilter | None = None
    #: In the order of message groups: while it is the only consumer, one `next` or `take` brings several of
    #: a group; the group goes on when all of them are acknowledged, or have come back.
    turns: bool = False


@value
class Delivery:
    """A stored batch for one consumer. `wanted`: a bit per message that this consumer shall process (None: all).
    `redelivered`: how often it was delivered before."""

    batch: Batch
    wanted: int | None = None
    redelivered: int = 0


class Consumer(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def denied(self) -> NotAuthorisedError | None:
        """Why it may not be there any more, if that is why it was closed."""

    @property
    def subscription(self) -> str: ...

    @property
    def active(self) -> bool:
        """Whether it gets messages now: false for a standby of a failover subscription."""

    @property
    def mark_delete(self) -> int:
        """The subscription's offset at and below which everything is acknowledged; -1 if nothing is."""

    @property
    def backlog(self) -> int:
        """How many messages the subscription has not acknowledged."""

    @property
    def gets_parts(self) -> bool:
        """Whether it is usual that it gets some messages of a batch only: by a filter, or message by message. What
        is left of a batch of which some are acknowledged comes in part everywhere."""

    async def next(self, credit: int) -> list[Delivery]:
        """Wait for deliveries that cost at most `credit` messages (a whole batch may exceed it by its size; the
        caller's credit then goes negative). Cancelling loses nothing. ReadStuckError tells, once in a while, that
        what comes next cannot be read: whoever calls again waits on."""

    def take(self, credit: int) -> list[Delivery]:
        """`next`, without waiting: nothing, if nothing is at hand. Not while a `next` waits."""

    def ack(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Acknowledge offsets, each range [first, end)."""

    def ack_up_to(self, offset: int) -> None:
        """Acknowledge everything up to and with the offset; not for shared and key-shared ones."""

    def redeliver(self, ranges: Sequence[tuple[int, int]] | None = None, *, delay_ms: int | None = None) -> None:
        """They failed: give back unacknowledged offsets, or all of this consumer's, for delivery anew: when the
        subscription's retry policy says, or, where messages are dealt one by one, after `delay_ms`. One that was
        delivered as often as the policy allows is a dead letter instead."""

    def give_back(self, deliveries: list[Delivery]) -> None:
        """Nobody has seen these, and they have not failed; nothing of a consumer that is closed."""

    def lease(self, ranges: Sequence[tuple[int, int]], span_ms: int) -> None:
        """Of messages that are dealt one by one: these are this consumer's no more, but nobody else gets them for
        so long. Unless they are acknowledged until then they have failed, and are ready at once, or dead letters.
        Also for what was leased before, by any consumer: so long from now on."""

    def reject(self, ranges: Sequence[tuple[int, int]]) -> None:
        """They are dead letters, however often they were delivered; what was leased, too."""

    async def seek(self, offset: int) -> None:
        """Move the subscription; its consumers are closed, as they must connect anew."""

    async def active_change(self, seen: bool) -> bool:
        """Wait until `active` is no longer `seen`; answers what it is."""

    async def persisted(self) -> None:
        """Wait until everything acknowledged so far survives a crash."""

    async def unsubscribe(self, *, force: bool = False) -> None:
        """End the subscription; it may have no other consumers unless forced."""

    async def closed(self) -> str:
        """Wait until the broker closes it; answers why."""

    async def close(self, *, failed: bool = False) -> None:
        """What it has goes to others, at once. `failed`: its client is gone without a word, so where a policy
        counts failures this is one of each message that it had."""


log = logging.getLogger(__name__)

#: Subscriptions that are remembered as logged: a client may ask again without end.
_MOST_LOGGED = 1000


class ConsumerLimit:
    """`most`: consumers per subscription; 0: any number."""

    def __init__(self, most: int = 0) -> None:
        self._most = most
        #: How many consumers were refused.
        self.refused = 0
        #: Subscriptions that the log has named.
        self._logged: dict[str, None] = {}

    def check(self, consumers: int, topic: str, subscription: str) -> None:
        """TooManyError if a subscription with so many consumers may not have one more."""
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
