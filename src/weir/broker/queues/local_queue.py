"""The common part of the queues of this broker: their consumers, counts, and notifications of the namespace."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from weir.broker.api.consumers import Delivery, SubscribeRequest, SubscriptionType
from weir.broker.api.queues import ConsumeRequest, QueueCounts, QueueMessages
from weir.broker.ports import LetterRoutes
from weir.broker.queues.queue_limits import QueueLimitEnforcer
from weir.broker.subscriptions.consumer import BrokerConsumer
from weir.broker.subscriptions.subscription import Subscription
from weir.model.errors import (
    ConsumerClosedError,
    QueueLockedError,
    QueueNotFoundError,
    SubscriptionBusyError,
    TopicClosedError,
)
from weir.model.queues import (
    QUEUE_SUBSCRIPTION,
    QueueDeclaration,
    QueuePolicy,
    QueueRules,
    queue_in_vhost,
    vhost_of,
)
from weir.model.topics import NamespaceName
from weir.runtime.budgets import ByteShare


class ConsumedQueue(Protocol):
    """A queue as its consumers need it."""

    async def accepted(self) -> None:
        """Wait until all messages published so far are visible."""

    async def shortened(self) -> None:
        """Wait until the queue dropped the messages that exceed its length limits."""

    def taking(self) -> None:
        """Note a request for a message."""

    def consumer_left(self) -> None:
        """Note that a client cancelled or closed a consumer."""

    def reject(
        self, subscription: Subscription, consumer: BrokerConsumer, ranges: Sequence[tuple[int, int]]
    ) -> None:
        """Reject messages of a consumer."""


class LocalConsumer:
    """Implements `api.QueueConsumer`."""

    def __init__(self, queue: ConsumedQueue, subscription: Subscription, consumer: BrokerConsumer) -> None:
        self._queue = queue
        self._subscription = subscription
        self._consumer = consumer
        self._counts = consumer.request.counted

    @property
    def unacked(self) -> int:
        return self._consumer.unacked

    async def next(self, credit: int) -> list[Delivery]:
        return await self._consumer.next(credit)

    async def take(self) -> Delivery | None:
        consumer = self._consumer
        self._queue.taking()
        await self._queue.accepted()
        await self._queue.shortened()
        while True:
            dispatcher = self._subscription.per_message() if consumer.open else None
            if dispatcher is None or not dispatcher.has(consumer):
                raise ConsumerClosedError("the consumer is closed")
            found = dispatcher.take(consumer)
            if isinstance(found, Delivery):
                consumer.count_taken(found)
                return found
            if not found:
                return None
            await dispatcher.looked.wait()

    def ack(self, ranges: Sequence[tuple[int, int]]) -> None:
        if self._consumer.open:
            self._consumer.ack(ranges)

    def requeue(self, ranges: Sequence[tuple[int, int]]) -> None:
        if self._consumer.open:
            self._consumer.redeliver(ranges)

    def reject(self, ranges: Sequence[tuple[int, int]]) -> None:
        if self._consumer.open:
            self._queue.reject(self._subscription, self._consumer, ranges)

    async def persisted(self) -> None:
        """Wait until everything acknowledged so far survives a crash. ConsumerClosedError if that is unknown."""
        if not self._consumer.open:
            raise ConsumerClosedError("the consumer is closed")
        await self._subscription.persisted()

    def retire(self) -> None:
        dispatcher = self._subscription.per_message()
        if self._consumer.open and not self._consumer.retired and dispatcher is not None:
            dispatcher.retire(self._consumer)
            self._left()

    async def closed(self) -> str:
        return await self._consumer.closed()

    async def close(self) -> None:
        was_open = self._consumer.open
        await self._consumer.close()
        if was_open:
            self._left()

    def _left(self) -> None:
        if self._counts:
            self._counts = False
            self._queue.consumer_left()


class StreamConsumer(LocalConsumer):
    """A consumer of a stream. Requeue and reject act like an acknowledgment: they remove nothing and return
    credit."""

    def requeue(self, ranges: Sequence[tuple[int, int]]) -> None:
        self.ack(ranges)

    def reject(self, ranges: Sequence[tuple[int, int]]) -> None:
        self.ack(ranges)


class QueueOwner(LetterRoutes, Protocol):
    """The namespace of a queue: it supplies policies and receives notifications."""

    def unused(self, queue: "LocalQueue") -> None:
        """An auto-delete queue lost its last consumer."""

    def closed(self, queue: "LocalQueue") -> None:
        """Its topic closed: the next use opens both."""

    def expired(self, queue: "LocalQueue") -> None:
        """The queue was unused for the time in its rules."""

    def policy_of(self, declaration: QueueDeclaration) -> QueuePolicy | None:
        """The effective policy."""

    def rules_of(self, declaration: QueueDeclaration) -> QueueRules:
        """The rules from its arguments and policies."""


class LocalQueue(ABC):
    """The common part of `api.Queue`; a subclass adds the storage, a topic or memory."""

    def __init__(self, owner: QueueOwner, declaration: QueueDeclaration, namespace: NamespaceName) -> None:
        self.declaration = declaration
        #: Id of the owning connection, if it is exclusive.
        self.connection = ""
        #: Its name in error messages, as in RabbitMQ's.
        self.said = queue_in_vhost(declaration.name, vhost_of(namespace))
        self._owner = owner
        #: Set at the start of its deletion.
        self.gone = False
        #: Applies its rules; None for a queue without such rules.
        self.keeper: QueueLimitEnforcer | None = None

    @property
    def name(self) -> str:
        return self.declaration.name

    @property
    @abstractmethod
    def rules(self) -> QueueRules: ...

    @property
    @abstractmethod
    def alive(self) -> bool: ...

    @property
    def policy(self) -> QueuePolicy | None:
        return self._owner.policy_of(self.declaration)

    def used(self) -> None:
        """Restart `x-expires`: after a declaration, a passive declaration or a change of consumers."""
        if self.keeper is not None:
            self.keeper.unused.used()

    def expire(self) -> None:
        self._owner.expired(self)

    @abstractmethod
    def publish(self, messages: QueueMessages) -> "asyncio.Future[int]": ...

    @abstractmethod
    async def wait_capacity(self) -> None: ...

    @property
    @abstractmethod
    def has_capacity(self) -> bool: ...

    @property
    @abstractmethod
    def subscription(self) -> Subscription | None:
        """The subscription of its consumers; None for a topic without a declaration before its first consumer."""

    @abstractmethod
    async def ensure_subscription(self) -> Subscription: ...

    @abstractmethod
    async def subscribe(self, request: SubscribeRequest, share: ByteShare | None) -> BrokerConsumer:
        """NotAuthorisedError, SubscriptionBusyError."""

    def _unsubscribed_messages(self) -> int:
        """The number of messages for a first consumer."""
        return 0

    # --- consuming --------------------------------------------------------------------------------------

    async def consume(self, request: ConsumeRequest, *, share: ByteShare | None = None) -> LocalConsumer:
        return await self._join(
            SubscribeRequest(
                request.role,
                QUEUE_SUBSCRIPTION,
                SubscriptionType.SHARED,
                consumer_name=request.tag,
                priority=-request.priority,
                properties={"prefetch": str(request.prefetch)} if request.prefetch else {},
                address=request.address,
                per_message=True,
                alone=request.exclusive,
                filter=request.filter,
            ),
            share,
        )

    async def getter(self, role: str) -> LocalConsumer:
        return await self._join(
            SubscribeRequest(role, QUEUE_SUBSCRIPTION, SubscriptionType.SHARED, per_message=True, counted=False),
            None,
        )

    async def _join(self, request: SubscribeRequest, share: ByteShare | None) -> LocalConsumer:
        try:
            subscription = await self.ensure_subscription()
            consumer = await self.subscribe(request, share)
        except SubscriptionBusyError as busy:
            raise QueueLockedError(f"{self.said} in exclusive use", hint=QueueLockedError.hint) from busy
        except TopicClosedError as closed:
            if self.gone:
                raise QueueNotFoundError(f"no {self.said}") from closed
            raise
        self.used()
        return LocalConsumer(self, subscription, consumer)

    def taking(self) -> None:
        self.used()

    def consumer_left(self) -> None:
        self.used()
        if self.declaration.auto_delete and not self.gone and not self.consumer_count:
            self._owner.unused(self)

    def reject(
        self, subscription: Subscription, consumer: BrokerConsumer, ranges: Sequence[tuple[int, int]]
    ) -> None:
        if self.keeper is None:
            consumer.ack(ranges)
        else:
            self.keeper.reject(subscription, consumer, ranges)

    # --- counting ---------------------------------------------------------------------------------------

    @property
    def consumer_count(self) -> int:
        subscription = self.subscription
        dispatcher = None if subscription is None else subscription.per_message()
        if dispatcher is None:
            return 0 if subscription is None else len(subscription.consumers)
        return len(dispatcher.served)

    def counts_now(self) -> QueueCounts:
        subscription = self.subscription
        if subscription is None:
            return QueueCounts(self._unsubscribed_messages(), 0, 0)
        dispatcher = subscription.per_message()
        unacked = subscription.unacked
        aside = 0 if dispatcher is None else dispatcher.aside
        return QueueCounts(max(0, subscription.backlog - unacked - aside), unacked, self.consumer_count)

    @abstractmethod
    async def accepted(self) -> None:
        """Wait until all messages published so far are visible, including transient ones."""

    async def counts(self, *, use: bool = False) -> QueueCounts:
        if use:
            self.used()
        await self.accepted()
        await self.shortened()
        return self.counts_now()

    async def shortened(self) -> None:
        """Wait until the queue dropped the messages that exceed its length limits."""
        if self.keeper is not None:
            await self.keeper.length.enforced()

    async def purge(self) -> int:
        await self.accepted()
        subscription = await self.ensure_subscription()
        dropped = subscription.drop_ready()
        await subscription.persisted()
        return dropped
