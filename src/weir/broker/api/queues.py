"""Queues, exchanges with their bindings, and direct replies, for gateways of queue protocols (AMQP).

A durable queue is a topic with one shared subscription, `QUEUE_SUBSCRIPTION`: the queue contains all messages of
the topic, and a topic without a declaration also works as a queue. A transient or exclusive queue is in the memory
of one broker and has no topic. Another broker may serve any of these: synchronous methods never wait for a
response.

A gateway with exchanges opens the namespace once, then calls `route` per message, without waiting. Exchanges know
queues only by name; the broker that serves a queue knows whether it exists and how long it lasts.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from weir.broker.api.consumers import Delivery
from weir.model.batch import Stamp
from weir.model.exchanges import Binding, Exchange
from weir.model.ids import Buffer, value
from weir.model.queues import QueueDeclaration, QueueLimits, QueuePolicy, QueueRules
from weir.model.registry import Action
from weir.model.subscriptions import MessageFilter
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.budgets import ByteShare


@value
class QueueMessages:
    """Messages for a queue, stored as one entry. `encoded`: each in the format of `wire.messages.encode_message`,
    so that a message for many queues is encoded once."""

    encoded: Sequence[Buffer]
    #: Whether any of them is persistent; otherwise the publish does not wait for a disk.
    persistent: bool = True
    #: Delivery time of delayed messages (milliseconds since 1970); the same for all.
    deliver_at_ms: int | None = None
    #: Time to live of the messages that have one, by index, in milliseconds.
    expirations_ms: Mapping[int, int] = field(default_factory=dict)
    #: For messages from the broker: the queue drops messages that it already stored under this stamp, or under a
    #: higher epoch of its id.
    stamp: Stamp | None = None
    #: For dead letters: the queue keeps them for its consumers even if it never had any.
    kept: bool = False


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """Counts of a queue. `ready`: messages waiting for delivery; `unacked`: delivered and not acknowledged."""

    ready: int
    unacked: int
    consumers: int


@dataclass(frozen=True, slots=True)
class QueueOutline:
    """The declaration of a queue that is a topic. `topics`: the topic, or its partitions."""

    declaration: QueueDeclaration
    rules: QueueRules
    policy: QueuePolicy | None
    topics: Sequence[TopicName]


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    """A request to consume a queue. `priority`: higher ones receive messages first. `exclusive`: no other consumer
    is permitted. `tag`, `address` and `prefetch` are for display. `stream_offset`: the start position in a stream:
    `first`, `last`, `next`, an offset, a time (datetime), or an interval as text."""

    role: str
    tag: str = ""
    exclusive: bool = False
    priority: int = 0
    no_ack: bool = False
    prefetch: int = 0
    address: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    stream_offset: Any = None
    #: Filter of this consumer; other messages stay for other consumers. FilterError.
    filter: MessageFilter | None = None


class QueueConsumer(Protocol):
    """A consumer of a queue. Deliveries identify messages by offsets (a queue in memory uses sequence numbers);
    each message of a batch with a bit in `wanted` is one delivery, and `redelivered` is its redelivery count."""

    async def next(self, credit: int) -> list[Delivery]:
        """Wait for at most `credit` messages, exactly counted. Cancellation loses nothing. ConsumerClosedError."""

    async def take(self) -> Delivery | None:
        """Return the next message at once; None if none is ready."""

    def ack(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Acknowledge messages, each range [first, end)."""

    def requeue(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Return messages to their original positions in the queue."""

    def reject(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Reject messages: they become dead letters if the queue has a dead letter target, else they are
        dropped."""

    def retire(self) -> None:
        """Stop deliveries and stop counting as a consumer; its unacknowledged messages stay with it until
        `close`."""

    async def closed(self) -> str:
        """Wait until the broker closes it; return the reason."""

    async def close(self) -> None:
        """Close it and requeue its unacknowledged messages."""


class Queue(Protocol):
    @property
    def declaration(self) -> QueueDeclaration: ...

    @property
    def connection(self) -> str:
        """The id of the owning connection of an exclusive queue, from its declaration; "" for other queues."""

    @property
    def rules(self) -> QueueRules: ...

    @property
    def policy(self) -> QueuePolicy | None:
        """The effective policy."""

    @property
    def alive(self) -> bool:
        """False after deletion or a change of owner; the caller must then open the queue again."""

    async def counts(self, *, use: bool = False) -> QueueCounts:
        """`use`: this is a use of the queue, which renews its `x-expires`."""

    def publish(self, messages: QueueMessages) -> "asyncio.Future[int]":
        """Store messages in the queue. Decides at once; the future completes, in the order of the calls, when the
        messages have their requested durability. Its result has a bit per message that the full queue refused: 0
        for none."""

    @property
    def has_capacity(self) -> bool:
        """Whether `wait_capacity` would certainly not wait."""

    async def wait_capacity(self) -> None:
        """Wait while a quota, a rate limit or memory pressure pauses publishing."""

    async def consume(self, request: ConsumeRequest, *, share: ByteShare | None = None) -> QueueConsumer:
        """NotAuthorisedError, QueueLockedError (an exclusive consumer), QueueArgumentError. `share`: the byte
        budget of undelivered messages for all consumers of the connection."""

    async def getter(self, role: str) -> QueueConsumer:
        """A consumer for single gets (`take`) that does not count as a consumer."""

    async def purge(self) -> int:
        """Drop all ready messages; return their number."""


class NamespaceQueues(Protocol):
    """The queues of a namespace. `connection`: the caller's connection; exclusive queues of other connections
    raise QueueLockedError."""

    def find(self, name: str) -> Queue | None:
        """The queue if it is open on this broker; does not wait."""

    async def get(self, role: str, name: str, *, connection: str = "") -> Queue:
        """Open a queue; a topic without a declaration is a queue, too. QueueNotFoundError, QueueLockedError."""

    async def look(self, name: str) -> Queue:
        """Like `get`, without checks of role and exclusive ownership: the caller has made them."""

    async def outline(self, name: str) -> QueueOutline | None:
        """The outline of a queue that is a topic, without loading the topic; None if the topic does not exist."""

    async def declare(self, role: str, wanted: QueueDeclaration, *, connection: str = "") -> Queue:
        """Create the queue, or return the existing one if it is equivalent. A queue without a name receives a
        unique name. The declaration also applies to an existing topic without one. QueueRefusedError,
        InequivalentQueueError, QueueArgumentError, QueueLockedError, NotAuthorisedError, TooManyError."""

    async def delayed(self, exchange: str) -> Queue:
        """The queue of an exchange's delayed messages. The exchange routes them at their delivery time
        (`deliver_at_ms`), by the bindings of that moment. The first call creates the queue."""

    async def forget_delayed(self, exchange: str) -> None:
        """Drop the delayed messages of a deleted exchange."""

    async def delete(
        self, role: str, name: str, *, if_unused: bool = False, if_empty: bool = False, connection: str = ""
    ) -> int:
        """Delete a queue with its bindings, and close its consumers. Returns the number of its messages, 0 if the
        queue did not exist. QueueInUseError, QueueLockedError, NotAuthorisedError."""

    async def release(self, connection: str) -> None:
        """Delete the exclusive queues of a closed connection."""

    async def names(self) -> Sequence[str]:
        """The names of all queues: those in the memory of this broker, and every topic."""

    @property
    def limits(self) -> QueueLimits:
        """The current limits of the namespace."""

    def policies(self) -> Sequence[QueuePolicy]: ...

    async def set_policy(self, role: str, policy: QueuePolicy) -> None:
        """Set a policy; it applies at once to all existing and future queues. QueueArgumentError for invalid
        values."""

    async def clear_policy(self, role: str, name: str, *, operator: bool = False) -> None:
        """Delete a policy; a no-op if it does not exist. `operator`: the operator policy of this name."""


class Queues(Protocol):
    async def open(self, namespace: NamespaceName) -> NamespaceQueues:
        """NamespaceNotFoundError."""


class Routed(NamedTuple):
    """The queues of a message: sorted, each once."""

    queues: tuple[str, ...]
    #: An exchange on the route matched no binding, and its alternate exchange routed the message.
    alternate: bool = False
    #: The route includes the default exchange: it uses routing keys as queue names, without checking that these
    #: queues exist. The caller must ignore queues that do not exist.
    by_name: bool = False

    @property
    def unroutable(self) -> bool:
        return not self.queues


class NamespaceExchanges(Protocol):
    """The exchanges and bindings of a namespace. Reads are from memory; a watch applies changes of other brokers.

    Durable exchanges, and bindings between durable exchanges and queues, are in the metadata and visible to all
    brokers. Transient ones disappear with the broker that received the request; all brokers of the cluster see
    them until then."""

    def find(self, name: str) -> Exchange | None: ...

    def get(self, name: str) -> Exchange:
        """ExchangeNotFoundError if it does not exist: a passive declaration."""

    def exchanges(self) -> Sequence[Exchange]:
        """All exchanges by name, including the predeclared ones."""

    def bindings(self, *, source: str | None = None, queue: str | None = None) -> Sequence[Binding]:
        """All bindings, those of an exchange, or those to a queue, without the implicit bindings of the default
        exchange to every queue."""

    async def declare(self, role: str, exchange: Exchange) -> Exchange:
        """Create the exchange, or return the existing one if it is equivalent. ExchangeRefusedError,
        InequivalentExchangeError, ExchangeArgumentError, TooManyError."""

    async def delete(self, role: str, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange with its bindings; a no-op if it does not exist. ExchangeRefusedError,
        ExchangeInUseError."""

    async def bind(self, role: str, binding: Binding, *, durable: bool) -> None:
        """Add a binding; idempotent. `durable`: whether the destination is durable, if it is a queue; the caller
        checks that the queue exists. ExchangeNotFoundError, ExchangeRefusedError, ExchangeArgumentError,
        TooManyError."""

    async def unbind(self, role: str, binding: Binding) -> None:
        """Remove a binding; a no-op if it does not exist. The removal of the last binding deletes an auto-delete
        exchange, and then the auto-delete exchanges whose only binding led to it."""

    async def forget_queue(self, queue: str) -> None:
        """Remove every binding to a queue. The caller deletes the queue afterwards, so that a repeated delete of
        the queue also completes an interrupted removal."""

    def check_publish(self, role: str, exchange: str) -> None:
        """Raise unless the role may publish to the exchange: ExchangeNotFoundError, ExchangeRefusedError if it is
        internal, NotAuthorisedError. The result is valid while `Guard.revision` and the exchange are unchanged.
        Every role may publish to the default exchange; the permission to produce to the queue decides there."""

    def check_key(self, role: str, exchange: Exchange, key: str, action: Action) -> None:
        """NotAuthorisedError unless the role may publish to an exchange with this routing key, or bind from the
        exchange with it. Only topic exchanges with key patterns for the role refuse a key."""

    def route(self, exchange: str, keys: tuple[str, ...], headers: Mapping[str, Any]) -> Routed:
        """The queues for a message with these routing keys (its own, CC and BCC) and headers;
        ExchangeNotFoundError. A pure lookup in memory."""


class Exchanges(Protocol):
    """The exchanges of all namespaces. A namespace costs nothing until it is opened."""

    async def open(self, namespace: NamespaceName) -> NamespaceExchanges:
        """Open a namespace. The first call reads the metadata, later calls use memory. NamespaceNotFoundError."""


class ReplyReceiver(Protocol):
    def take_reply(self, parts: Sequence[Buffer]) -> None:
        """Receive a reply. `parts`: those from `deliver`. A receiver that cannot accept the reply drops it."""


class DirectReplies(Protocol):
    """Direct replies: receivers on any broker, by unguessable names. The broker stores no reply: a receiver that
    no longer waits gets none."""

    def expect(self, receiver: ReplyReceiver) -> str:
        """Register the receiver; return its name."""

    def forget(self, name: str) -> None: ...

    async def expected(self, name: str) -> bool:
        """Whether a receiver waits under this name."""

    async def deliver(self, name: str, parts: Sequence[Buffer]) -> bool:
        """Deliver a reply; return whether a receiver exists. Replies arrive in order if the caller awaits each
        call before the next."""
