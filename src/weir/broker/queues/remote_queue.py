"""Client side of the queue relay: queues of another broker behind the local interface; each operation is a call.

One long-polling call returns the deliveries for all consumers of this broker at the other broker. Messages
published during a call form the next call, so the order of a queue's messages is the order of `publish`.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable, Sequence
from typing import Protocol, TypeVar

from weir.broker.api.consumers import Delivery
from weir.broker.api.queues import ConsumeRequest, QueueConsumer, QueueCounts, QueueMessages
from weir.broker.coordination.remote_partition_ops import PASSING
from weir.broker.filters.message_filter import compiled
from weir.broker.peers.peer_calls import PeerCalls
from weir.model.batch import Batch, bits_at
from weir.model.errors import ConsumerClosedError, QueueNotFoundError, ReadStuckError, WeirError
from weir.model.queues import QueueDeclaration, QueuePolicy, QueueRules
from weir.runtime.budgets import ByteShare
from weir.runtime.tasks import TaskScope
from weir.runtime.waiters import Waiters
from weir.wire.exchanges import encode_argument
from weir.wire.peer import queue_calls as wire
from weir.wire.peer.protocol import A, PeerRequest

R = TypeVar("R")

#: Longest wait of one call for deliveries (a broker that shuts down waits for its end), and the additional timeout
#: for its answer.
_WAIT_S = 2.0
_ANSWER_S = 10.0
#: Most unsent bytes of one queue.
_UNSENT_BYTES = 8 * 1024 * 1024
#: Most messages and bytes of one call.
_AT_ONCE = 4096
_AT_ONCE_BYTES = 1024 * 1024


class RelayLink:
    """The connection to the queues of another broker: this broker's consumers there, and their unsent
    acknowledgments."""

    def __init__(self, peers: PeerCalls, asker: str, owner: str, tasks: TaskScope) -> None:
        self._peers = peers
        self._asker = asker
        self.owner = owner
        self._tasks = tasks
        self._consumers: dict[int, RemoteConsumer] = {}
        self._count = 0
        self._unsaid: list[wire.Settled] = []
        #: Ended consumers whose close the other broker has not confirmed: sent again until it does.
        self._ended: dict[int, wire.Settled] = {}
        self._saying: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    @property
    def peers(self) -> PeerCalls:
        return self._peers

    @property
    def tasks(self) -> TaskScope:
        return self._tasks

    async def consume(
        self, at: wire.QueueAt, role: str, request: ConsumeRequest | None, share: ByteShare | None
    ) -> "RemoteConsumer":
        """Create a consumer, or a getter if `request` is None."""
        self._count += 1
        number = self._count
        if request is None:
            call = wire.ConsumeQueue(at, self._asker, number, role, getter=True)
        else:
            offset = request.stream_offset
            call = wire.ConsumeQueue(
                at,
                self._asker,
                number,
                role,
                tag=request.tag,
                exclusive=request.exclusive,
                priority=request.priority,
                no_ack=request.no_ack,
                prefetch=request.prefetch,
                address=request.address,
                stream_offset="" if offset is None else encode_argument(offset),
                filter_sql="" if request.filter is None else request.filter.sql,
                filter_tags="" if request.filter is None else request.filter.tags,
            )
        consumer = RemoteConsumer(self, number, share)
        self._consumers[number] = consumer
        try:
            await self._peers.ask(self.owner, call)
        except BaseException:
            self._consumers.pop(number, None)
            self._end([number])  # it may exist despite the error
            raise
        if number not in self._consumers:  # a concurrent failure ended all consumers
            raise ConsumerClosedError("the broker that has the queue was out of reach")
        if self._listening is None:
            self._listening = self._tasks.spawn(self._listen(), "relay")
        return consumer

    async def take(self, number: int) -> list[Delivery]:
        answer = await self._peers.ask(self.owner, wire.TakeOne(self._asker, number))
        return [_delivery(one) for one in answer.deliveries]

    def say(self, settled: wire.Settled) -> None:
        """Send acknowledgments or credit soon, in the order of the calls."""
        self._unsaid.append(settled)
        if self._saying is None:
            self._saying = self._tasks.spawn(self._say(), "relay settled")

    async def said(self) -> None:
        """Wait until everything from `say` so far has arrived, or is known to be lost."""
        if self._saying is not None:
            await asyncio.wait([self._saying])

    def forget(self, number: int) -> None:
        self._consumers.pop(number, None)

    async def _say(self) -> None:
        try:
            while self._unsaid or self._ended:
                said, self._unsaid = self._unsaid, []
                ended = dict(self._ended)
                try:
                    await self._peers.ask(self.owner, wire.SettleQueues(self._asker, (*said, *ended.values())))
                except WeirError as failed:
                    self._fail(failed)
                    if not self._unsaid:
                        return  # sent again with the next call; the other broker also detects the silence
                else:
                    for number in ended:
                        del self._ended[number]
        finally:
            self._saying = None

    async def _listen(self) -> None:
        wait = wire.AwaitDeliveries(self._asker, int(_WAIT_S * 1000))
        try:
            while self._consumers:
                answer = await self._peers.ask(self.owner, wait, timeout_s=_WAIT_S + _ANSWER_S)
                if self._ended and self._saying is None:
                    self._saying = self._tasks.spawn(self._say(), "relay ended")
                for one in answer.deliveries:
                    consumer = self._consumers.get(one.number)
                    if consumer is not None:
                        consumer.came(_delivery(one))
                for number, why in answer.stuck.items():
                    consumer = self._consumers.get(number)
                    if consumer is not None:
                        consumer.fail(ReadStuckError(why))
                for number, why in answer.closed.items():
                    consumer = self._consumers.pop(number, None)
                    if consumer is not None:
                        consumer.shut(why)
        except WeirError as failed:
            self._fail(failed)
        finally:
            self._listening = None

    def _fail(self, why: WeirError) -> None:
        """Close all consumers: acknowledgments or deliveries may be lost, so their messages are no longer
        theirs."""
        consumers, self._consumers = self._consumers, {}
        for consumer in consumers.values():
            consumer.shut(f"the broker that has the queue is out of reach: {why.what}")
        self._end(consumers)

    def _end(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._ended[number] = wire.Settled(number, ends="close")
        if self._ended and self._saying is None:
            self._saying = self._tasks.spawn(self._say(), "relay ended")


class RemoteConsumer:
    """Implements `api.QueueConsumer`."""

    def __init__(self, link: RelayLink, number: int, share: ByteShare | None) -> None:
        self._link = link
        self._number = number
        self._share = share
        self._inbox: list[Delivery] = []
        self._granted = 0
        self._arrival = Waiters()
        self._closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def came(self, delivery: Delivery) -> None:
        self._inbox.append(delivery)
        self._arrival.wake()

    def fail(self, failure: ReadStuckError) -> None:
        """Raise the read error in a waiting `next`; the caller may wait again."""
        self._arrival.fail(failure)

    def shut(self, why: str) -> None:
        if not self._closed.done():
            self._closed.set_result(why)
            self._inbox.clear()
            self._arrival.fail(ConsumerClosedError(f"the consumer is closed: {why}"))

    async def next(self, credit: int) -> list[Delivery]:
        while not self._inbox:
            self._check_open()
            if credit > self._granted:
                self._link.say(wire.Settled(self._number, credit=credit - self._granted))
                self._granted = credit
            await self._arrival.wait()
        taken, self._inbox = self._inbox, []
        for delivery in taken:
            wanted = delivery.wanted
            self._granted -= delivery.batch.count if wanted is None else wanted.bit_count()
            if self._share is not None:
                self._share.acquire(len(delivery.batch.payload))
        return taken

    async def take(self) -> Delivery | None:
        self._check_open()
        found = await self._link.take(self._number)
        return found[0] if found else None

    def ack(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._say(wire.Settled(self._number, acked=_flat(ranges)))

    def requeue(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._say(wire.Settled(self._number, requeued=_flat(ranges)))

    def reject(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._say(wire.Settled(self._number, rejected=_flat(ranges)))

    def retire(self) -> None:
        self._say(wire.Settled(self._number, ends="retire"))

    async def closed(self) -> str:
        return await asyncio.shield(self._closed)

    async def close(self) -> None:
        self._say(wire.Settled(self._number, ends="close"))
        self._link.forget(self._number)
        self.shut("closed by the client")
        await self._link.said()

    def _say(self, settled: wire.Settled) -> None:
        if not self._closed.done():
            self._link.say(settled)

    def _check_open(self) -> None:
        if self._closed.done():
            raise ConsumerClosedError(f"the consumer is closed: {self._closed.result()}")


class SaidOfQueues(Protocol):
    """Effective rules and policies of queues, the same on every broker."""

    def rules_of(self, declaration: QueueDeclaration) -> QueueRules: ...

    def policy_of(self, declaration: QueueDeclaration) -> QueuePolicy | None: ...


class RemoteQueue:
    """Implements `api.Queue`. `alive` becomes false once the other broker reports that it no longer has the
    queue."""

    def __init__(
        self,
        link: RelayLink,
        at: wire.QueueAt,
        declaration: QueueDeclaration,
        said: SaidOfQueues,
        *,
        connection: str = "",
    ) -> None:
        """`said`: rules of all queues of the namespace; `connection`: the owner of an exclusive queue."""
        self.connection = connection
        self._link = link
        self._at = at
        self.declaration = declaration
        self._said = said
        self._unsent: deque[tuple[QueueMessages, asyncio.Future[int]]] = deque()
        self._unsent_bytes = 0
        self._sending: asyncio.Task[None] | None = None
        self._room = Waiters()
        self.alive = True

    @property
    def owner(self) -> str:
        return self._link.owner

    @property
    def rules(self) -> QueueRules:
        return self._said.rules_of(self.declaration)

    @property
    def policy(self) -> QueuePolicy | None:
        return self._said.policy_of(self.declaration)

    async def counts(self, *, use: bool = False) -> QueueCounts:
        numbers = await self._ask(wire.CountQueue(self._at, use))
        return QueueCounts(numbers.ready, numbers.unacked, numbers.consumers)

    async def purge(self) -> int:
        return (await self._ask(wire.PurgeQueue(self._at))).messages

    async def delete(self, role: str, *, if_unused: bool, if_empty: bool) -> int:
        request = wire.DeleteQueue(self._at, role, self.connection, if_unused, if_empty)
        return (await self._ask(request)).messages

    async def consume(self, request: ConsumeRequest, *, share: ByteShare | None = None) -> QueueConsumer:
        compiled(request.filter)  # raises FilterError on this broker
        return await self._noting(self._link.consume(self._at, request.role, request, share))

    async def getter(self, role: str) -> QueueConsumer:
        return await self._noting(self._link.consume(self._at, role, None, None))

    # --- publishing -----------------------------------------------------------------------------------------

    def publish(self, messages: QueueMessages) -> "asyncio.Future[int]":
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._unsent.append((messages, done))
        self._unsent_bytes += sum(map(len, messages.encoded))
        if self._sending is None:
            self._sending = self._link.tasks.spawn(self._send(), "relay publish")
        return done

    @property
    def has_capacity(self) -> bool:
        return self._unsent_bytes <= _UNSENT_BYTES

    async def wait_capacity(self) -> None:
        while self._unsent_bytes > _UNSENT_BYTES:
            await self._room.wait()

    async def _send(self) -> None:
        try:
            while self._unsent:
                await self._send_some()
        finally:
            self._sending = None

    async def _send_some(self) -> None:
        group = self._next_group()
        encoded = [one for messages, _ in group for one in messages.encoded]
        head = group[0][0]
        size, stamp = sum(map(len, encoded)), head.stamp
        request = wire.PublishToQueue(
            self._at,
            b"".join(encoded),
            tuple(map(len, encoded)),
            head.persistent,
            head.deliver_at_ms,
            _expirations(group),
            () if stamp is None else (stamp.producer_id, stamp.epoch, stamp.sequence, stamp.checksum),
            head.kept,
        )
        try:
            refused = bits_at((await self._ask(request)).places, len(encoded))
        except WeirError as failed:
            for _, done in group:
                if not done.done():
                    done.set_exception(failed)
        else:
            for messages, done in group:
                count = len(messages.encoded)
                if not done.done():
                    done.set_result(refused & ((1 << count) - 1))
                refused >>= count
        finally:
            self._unsent_bytes -= size
            self._room.wake()

    def _next_group(self) -> list[tuple[QueueMessages, asyncio.Future[int]]]:
        """Remove and return the next messages that fit into one call."""
        group = [self._unsent.popleft()]
        head = group[0][0]
        count, size = len(head.encoded), sum(map(len, head.encoded))
        while self._unsent and head.stamp is None and count < _AT_ONCE and size < _AT_ONCE_BYTES:
            messages = self._unsent[0][0]
            if (
                messages.stamp is not None
                or messages.persistent != head.persistent
                or messages.deliver_at_ms != head.deliver_at_ms
            ):
                break
            group.append(self._unsent.popleft())
            count += len(messages.encoded)
            size += sum(map(len, messages.encoded))
        return group

    # --- calls ----------------------------------------------------------------------------------------------

    async def _ask(self, request: PeerRequest[A]) -> A:
        return await self._noting(self._link.peers.ask(self._link.owner, request))

    async def _noting(self, asked: Awaitable[R]) -> R:
        try:
            return await asked
        except (*PASSING, QueueNotFoundError):
            self.alive = False
            raise


def _flat(ranges: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    return tuple(end for run in ranges for end in run)


def _expirations(group: list[tuple[QueueMessages, asyncio.Future[int]]]) -> dict[int, int]:
    """The TTLs of the messages that have one, by their index in the whole group."""
    found: dict[int, int] = {}
    before = 0
    for messages, _ in group:
        for place, number in messages.expirations_ms.items():
            found[before + place] = number
        before += len(messages.encoded)
    return found


def _delivery(one: wire.RelayedDelivery) -> Delivery:
    batch = Batch(one.base_offset, one.count, one.format, one.append_ms, one.payload)
    return Delivery(batch, bits_at(one.wanted, one.count) if one.wanted else None, one.redelivered)
