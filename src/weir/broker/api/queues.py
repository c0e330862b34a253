"""Queues: what protocols have whose consumers take messages away, one by one, from a place with a name.

A durable queue is a topic with one shared subscription, `QUEUE_SUBSCRIPTION`: what others produce to the topic is
in the queue, and a topic that nobody declared can be used as one. A queue that is not durable, or is one
connection's own, is in the memory of one broker and has no topic.

Everything here can be another broker's: nothing waits for an answer but what is awaited.

Exchanges and bindings of a namespace, and where a message goes by them.

For a gateway that has exchanges: it opens the namespace once, then asks `route` per message, and never waits.
Queues are names here; which of them exist, and how long they last, is known to whoever serves them.

Answers that go straight to whoever asked, without a queue.
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
    """Messages that go into a queue together: one entry. `encoded`: each as `wire.messages.encode_message` made
    it, so that what goes to many queues is encoded once."""

    encoded: Sequence[Buffer]
    #: Whether any of them must outlive the broker; if none must, nobody waits for a disk.
    persistent: bool = True
    #: When they may be seen, if later than now (milliseconds since 1970); the same for all.
    deliver_at_ms: int | None = None
    #: How long those have that say so, by their place, in milliseconds.
    expirations_ms: Mapping[int, int] = field(default_factory=dict)
    #: Of the broker's own: what was taken in under this stamp, or under a higher epoch of its id, is not taken in
    #: again.
    stamp: Stamp | None = None
    #: Of dead letters: they stay for consumers of the queue, whether it has had any or not.
    kept: bool = False


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """`ready`: not with any consumer; `unacked`: with one, and not acknowledged."""

    ready: int
    unacked: int
    consumers: int


@dataclass(frozen=True, slots=True)
class QueueOutline:
    """A queue that is a topic, as it is declared. `topics`: the topic, or its partitions."""

    declaration: QueueDeclaration
    rules: QueueRules
    policy: QueuePolicy | None
    topics: Sequence[TopicName]


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    """`priority`: higher ones are served first. `exclusive`: there shall be no other consumer. `tag`, `address`
    and `prefetch` are for those who look. `stream_offset`: where in a stream to begin: `first`, `last`, `next`, an
    offset, a moment (datetime), or an interval as text."""

    role: str
    tag: str = ""
    exclusive: bool = False
    priority: int = 0
    no_ack: bool = False
    prefetch: int = 0
    address: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    stream_offset: Any = None
    #: Which messages it takes; others stay for other consumers. FilterError.
    filter: MessageFilter | None = None


class QueueConsumer(Protocol):
    """Deliveries name messages by offsets (of a queue in memory: by numbers that look the same); each message of a
    batch whose bit is in `wanted` is one delivery, and `redelivered` says how often that one came before."""

    async def next(self, credit: int) -> list[Delivery]:
        """Wait for at most `credit` messages, exactly counted. Cancelling loses nothing. ConsumerClosedError."""

    async def take(self) -> Delivery | None:
        """The one message that is next, now; None if nothing is ready."""

    def ack(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Done with: each range [first, end)."""

    def requeue(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Give back, to their old places."""

    def reject(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Not wanted: dead letters if the queue has a place for these, else gone."""

    def retire(self) -> None:
        """Get nothing more, and count as consumer no more; what it has stays with it until `close`."""

    async def closed(self) -> str:
        """Wait until the broker closes it; answers why."""

    async def close(self) -> None:
        """What it has is requeued."""


class Queue(Protocol):
    @property
    def declaration(self) -> QueueDeclaration: ...

    @property
    def connection(self) -> str:
        """Whose own it is, if it is exclusive: as it was declared with; "" for everybody's."""

    @property
    def rules(self) -> QueueRules: ...

    @property
    def policy(self) -> QueuePolicy | None:
        """The one that holds for it."""

    @property
    def alive(self) -> bool:
        """One that is not is to be asked for anew: it was deleted, or another broker has it."""

    async def counts(self, *, use: bool = False) -> QueueCounts:
        """`use`: this is a use of the queue, which renews its `x-expires`."""

    def publish(self, messages: QueueMessages) -> "asyncio.Future[int]":
        """Put messages in. Decides at once; done when they are as durable as they want to be, in the order of the
        calls. Answers which were refused because the queue is full, as bits: 0 for none."""

    @property
    def has_capacity(self) -> bool:
        """Whether `wait_capacity` would certainly not wait."""

    async def wait_capacity(self) -> None:
        """Wait while quota, rate limit or memory say that nothing more shall come for now."""

    async def consume(self, request: ConsumeRequest, *, share: ByteShare | None = None) -> QueueConsumer:
        """NotAuthorisedError, QueueLockedError (an exclusive consumer), QueueArgumentError. `share`: what this one
        and others of its connection may have in hand together."""

    async def getter(self, role: str) -> QueueConsumer:
        """One that takes messages one by one (`take`) and counts as no consumer."""

    async def purge(self) -> int:
        """Drop what is ready; answers how many these were."""


class NamespaceQueues(Protocol):
    """The queues of a namespace. `connection`: whose exclusive queues the caller may use; others' are
    QueueLockedError."""

    def find(self, name: str) -> Queue | None:
        """One that is open here, without waiting."""

    async def get(self, role: str, name: str, *, connection: str = "") -> Queue:
        """QueueNotFoundError, QueueLockedError. Opens it; a topic that nobody declared is one, too."""

    async def look(self, name: str) -> Queue:
        """`get`, whoever asks, and whosesoever it is: for those who have checked that themselves."""

    async def outline(self, name: str) -> QueueOutline | None:
        """A queue that is a topic, which is not loaded for it; None if there is no topic of this name."""

    async def declare(self, role: str, wanted: QueueDeclaration, *, connection: str = "") -> Queue:
        """Make it, unless there is one like it; answers the one that there is. One without a name gets one that no
        other has. A topic that nobody declared is declared so from now on. QueueRefusedError,
        InequivalentQueueError, QueueArgumentError, QueueLockedError, NotAuthorisedError, TooManyError."""

    async def delayed(self, exchange: str) -> Queue:
        """Where messages wait that an exchange routes when they are due (`deliver_at_ms`), by the bindings of that
        moment; it is made when it is first asked for."""

    async def forget_delayed(self, exchange: str) -> None:
        """The exchange is no more: what waits for it is dropped."""

    async def delete(
        self, role: str, name: str, *, if_unused: bool = False, if_empty: bool = False, connection: str = ""
    ) -> int:
        """With its bindings; answers how many messages it had, 0 if it was not there. Its consumers are closed.
        QueueInUseError, QueueLockedError, NotAuthorisedError."""

    async def release(self, connection: str) -> None:
        """The connection is gone: its exclusive queues go too."""

    async def names(self) -> Sequence[str]:
        """Every queue, those in memory of this broker and every topic."""

    @property
    def limits(self) -> QueueLimits:
        """Of the namespace, as they are now."""

    def policies(self) -> Sequence[QueuePolicy]: ...

    async def set_policy(self, role: str, policy: QueuePolicy) -> None:
        """For every queue that is there or will be, at once. QueueArgumentError for what cannot be."""

    async def clear_policy(self, role: str, name: str, *, operator: bool = False) -> None:
        """Fine if there is none. `operator`: the operator's of this name."""


class Queues(Protocol):
    async def open(self, namespace: NamespaceName) -> NamespaceQueues:
        """NamespaceNotFoundError."""


class Routed(NamedTuple):
    """The queues of a message: sorted, each once."""

    queues: tuple[str, ...]
    #: An exchange on the way matched nothing, and an alternate took over.
    alternate: bool = False
    #: The default exchange had a say: it takes routing keys for names of queues, without looking whether there are
    #: such queues. Those that there are not do not count.
    by_name: bool = False

    @property
    def unroutable(self) -> bool:
        return not self.queues


class NamespaceExchanges(Protocol):
    """All of a namespace. Reads are from memory; what other brokers change follows by a watch.

    Durable exchanges, and bindings between durable things, are in the metadata and seen by all brokers. Others are
    gone with the broker that was asked; if it is not the only one, the others see them, too."""

    def find(self, name: str) -> Exchange | None: ...

    def get(self, name: str) -> Exchange:
        """ExchangeNotFoundError if there is none: a passive declaration."""

    def exchanges(self) -> Sequence[Exchange]:
        """By name, the predeclared ones included."""

    def bindings(self, *, source: str | None = None, queue: str | None = None) -> Sequence[Binding]:
        """All, those of an exchange, or those that lead to a queue. The default exchange's, which follow from the
        names of queues, are not among them."""

    async def declare(self, role: str, exchange: Exchange) -> Exchange:
        """Make it, unless there is one like it; answers the one that there is. ExchangeRefusedError,
        InequivalentExchangeError, ExchangeArgumentError, TooManyError."""

    async def delete(self, role: str, name: str, *, if_unused: bool = False) -> None:
        """With its bindings; fine if it is not there. ExchangeRefusedError, ExchangeInUseError."""

    async def bind(self, role: str, binding: Binding, *, durable: bool) -> None:
        """Fine if it is there already. `durable`: whether the destination is, if it is a queue; that the queue
        exists is the caller's to check. ExchangeNotFoundError, ExchangeRefusedError, ExchangeArgumentError,
        TooManyError."""

    async def unbind(self, role: str, binding: Binding) -> None:
        """Fine if it is not there. An exchange that is deleted with its last binding may go, and those that were
        bound to it alone."""

    async def forget_queue(self, queue: str) -> None:
        """Take out every binding to a queue, before the queue itself is deleted: so what is cut short is begun
        again with it."""

    def check_publish(self, role: str, exchange: str) -> None:
        """Whether the role may publish to it: ExchangeNotFoundError, ExchangeRefusedError if it is internal,
        NotAuthorisedError. Holds while `Guard.revision` and the exchange are the same. To the default exchange
        everybody may; what counts is whether the role may produce to the queue."""

    def check_key(self, role: str, exchange: Exchange, key: str, action: Action) -> None:
        """Whether the role may publish to an exchange with this routing key, or bind from it by it:
        NotAuthorisedError. Says no for topic exchanges alone, where it was permitted some keys."""

    def route(self, exchange: str, keys: tuple[str, ...], headers: Mapping[str, Any]) -> Routed:
        """Where a message with these routing keys (its own, CC and BCC) and headers goes; ExchangeNotFoundError.
        Changes nothing, asks nobody."""


class Exchanges(Protocol):
    """The exchanges of all namespaces. What nobody opened costs nothing."""

    async def open(self, namespace: NamespaceName) -> NamespaceExchanges:
        """NamespaceNotFoundError. Known from the metadata the first time, from memory later on."""


class ReplyReceiver(Protocol):
    def take_reply(self, parts: Sequence[Buffer]) -> None:
        """`parts`: as they were given to `deliver`. One that cannot take it lets it go."""


class DirectReplies(Protocol):
    """Who waits for answers, on any broker, by names that nobody can guess who was not told. An answer is stored
    nowhere: who waits no more gets none."""

    def expect(self, receiver: ReplyReceiver) -> str:
        """The name that stands for it from now on."""

    def forget(self, name: str) -> None: ...

    async def expected(self, name: str) -> bool:
        """Whether somebody waits under this name."""

    async def deliver(self, name: str, parts: Sequence[Buffer]) -> bool:
        """Whether there was somebody to give it to. Who awaits one before the next has them arrive in order."""
