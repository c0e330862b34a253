"""Receives of a consumer group from one topic: waiting receivers, messages in flight, and invisible durations.

A receiver gets ready messages of all partitions of the topic on this broker. Without ready messages it waits in a
queue, and the group fetches from every partition on behalf of the first receiver in the queue. One timer makes
messages visible again after their invisible durations.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from weir.broker.api.broker import Broker
from weir.broker.api.consumers import Consumer, Delivery, StartAt, SubscribeRequest, SubscriptionType
from weir.broker.api.topics import Topic
from weir.gateway.rocketmq.errors import MOVED
from weir.model.batch import bits_at, indices_of
from weir.model.errors import ConsumerClosedError, NotOwnerError, ReadStuckError, WeirError
from weir.model.ids import value
from weir.model.messages import Message
from weir.model.retry import with_retry
from weir.model.subscriptions import FIFO_PROPERTY, GroupSettings, MessageFilter
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock, Timer
from weir.runtime.tasks import TaskScope
from weir.wire.formats.table import messages_of
from weir.wire.rocketmq.handles import ReceiptHandle

#: The highest delivery number in a receipt handle.
_MAX_DELIVERY = 2**32 - 1


class Received(NamedTuple):
    """A message for a consumer, with its receipt handle."""

    message: Message
    partition: int
    offset: int
    #: Number of deliveries, including this one.
    attempt: int
    stored_ms: int
    handle: ReceiptHandle


class Pending:
    """An invisible message. `client`: the client that keeps it while connected (auto-renew); "": it becomes
    visible at `due_ms`."""

    __slots__ = ("attempt", "client", "delivery", "due_ms")

    def __init__(self, delivery: int, attempt: int, due_ms: int, client: str) -> None:
        self.delivery = delivery
        self.attempt = attempt
        self.due_ms = due_ms
        self.client = client


class Link:
    """A group's subscription to one partition. `spare`: deliveries fetched for a receiver that left; the next
    receiver gets them first."""

    def __init__(
        self,
        partition: int,
        topic: Topic,
        consumer: Consumer,
        deadlines: "Deadlines",
        lives: Callable[[str], bool],
    ) -> None:
        """`lives`: whether a client is connected to this broker. Auto-renewed messages of other clients (for which
        another broker received) have a deadline; it is extended if the client is connected here by then."""
        self.partition = partition
        self.topic = topic
        self.consumer = consumer
        self.pending: dict[int, Pending] = {}
        self.spare: list[Delivery] = []
        self._deadlines = deadlines
        self._lives = lives
        #: Starts with a different number in each link, so that handles of earlier links are invalid.
        self._deliveries = deadlines.now_ms() & _MAX_DELIVERY

    @property
    def alive(self) -> bool:
        return self.topic.alive

    def take(self, credit: int) -> list[Delivery]:
        """Available deliveries, without waiting."""
        return self.take_spare() if self.spare else self.consumer.take(credit)

    def take_spare(self) -> list[Delivery]:
        spare, self.spare = self.spare, []
        return spare

    def hand_out(self, deliveries: Sequence[Delivery], invisible_ms: int, client: str) -> list[Received]:
        """Make messages invisible for `invisible_ms`, or while `client` is connected, and create their handles."""
        found: list[Received] = []
        due_ms = self._deadlines.now_ms() + invisible_ms
        for delivery in deliveries:
            batch = delivery.batch
            messages = messages_of(batch)
            attempt = delivery.redelivered + 1
            for index in range(batch.count) if delivery.wanted is None else indices_of(delivery.wanted):
                offset = batch.base_offset + index
                message = messages[index] if len(messages) == batch.count else messages[0]
                handle = self._hold(offset, attempt, due_ms, client)
                found.append(Received(message, self.partition, offset, attempt, batch.append_ms, handle))
        return found

    def _hold(self, offset: int, attempt: int, due_ms: int, client: str) -> ReceiptHandle:
        self._deliveries = self._deliveries + 1 & _MAX_DELIVERY
        self.pending[offset] = Pending(self._deliveries, attempt, due_ms, client)
        if not client or not self._lives(client):
            self._deadlines.add(due_ms, self, offset, self._deliveries)
        return ReceiptHandle(self.partition, offset, due_ms, self._deliveries)

    def has(self, handle: ReceiptHandle) -> Pending | None:
        """The invisible message of a handle, or None if that delivery has ended."""
        found = self.pending.get(handle.offset)
        if found is None or (found.delivery, found.due_ms) != (handle.delivery, handle.visible_ms):
            return None
        return found

    def ack(self, offset: int) -> None:
        self.pending.pop(offset, None)
        self.consumer.ack([(offset, offset + 1)])

    def reject(self, offset: int) -> None:
        """Make the message a dead letter."""
        self.pending.pop(offset, None)
        self.consumer.reject([(offset, offset + 1)])

    def prolong(self, handle: ReceiptHandle, pending: Pending, invisible_ms: int) -> ReceiptHandle:
        """Make the message invisible for `invisible_ms` from now; returns a new handle and invalidates the old."""
        return self._hold(handle.offset, pending.attempt, self._deadlines.now_ms() + invisible_ms, "")

    def reappear(self, offset: int) -> None:
        """Make the message visible again. If the queue has moved, it is already visible at its new owner."""
        if self.pending.pop(offset, None) is not None:
            with suppress(ConsumerClosedError):
                self.consumer.redeliver([(offset, offset + 1)], delay_ms=0)

    def expire(self, offset: int, delivery: int) -> bool:
        """Make the message visible after its invisible duration, unless it was settled or prolonged meanwhile;
        returns whether it became visible."""
        found = self.pending.get(offset)
        if found is None or found.delivery != delivery:
            return False
        if found.client and self._lives(found.client):
            return False
        self.reappear(offset)
        return True

    def free(self, client: str) -> None:
        """Make the auto-renewed messages of a disconnected client visible again."""
        for offset in [offset for offset, held in self.pending.items() if held.client == client]:
            self.reappear(offset)

    async def close(self) -> None:
        self.pending.clear()
        self.spare.clear()
        await self.consumer.close()


class Expiring(Protocol):
    def expire(self, offset: int, delivery: int) -> bool: ...


class Deadlines:
    """Deadlines of invisible messages, on one timer. Entries of settled messages stay until due."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Expiring, int, int]] = []
        self._number = 0
        self._timer: Timer | None = None
        self._due_ms = 0
        #: Number of messages that became visible again.
        self.expired = 0

    def now_ms(self) -> int:
        return self._clock.wall_ms()

    def add(self, due_ms: int, who: Expiring, offset: int, delivery: int) -> None:
        self._number += 1
        heappush(self._heap, (due_ms, self._number, who, offset, delivery))
        if self._timer is None or due_ms < self._due_ms:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            self._due_ms = self._heap[0][0]
            self._timer = self._clock.call_later(max(0, self._due_ms - self.now_ms()) / 1000, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now_ms = self.now_ms()
        while self._heap and self._heap[0][0] <= now_ms:
            _, _, who, offset, delivery = heappop(self._heap)
            self.expired += who.expire(offset, delivery)
        self._arm()

    def close(self) -> None:
        self._heap.clear()
        self._arm()


_Found = list[tuple[Link, list[Delivery]]]
EVERYTHING = MessageFilter()
#: Interval for checking which partitions this broker owns.
LOOK_S = 1.0


@value
class Want:
    """Parameters of a receive. `client`: messages stay invisible while this client is connected; "": for
    `invisible_ms`."""

    role: str
    count: int
    invisible_ms: int
    client: str = ""
    filter: MessageFilter = EVERYTHING


class _Receiver:
    __slots__ = ("future", "wanted")

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.future: asyncio.Future[_Found] = asyncio.get_running_loop().create_future()


class GroupTopic:
    """A consumer group's receives from one topic; `receive` opens subscriptions as needed."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        tasks: TaskScope,
        deadlines: Deadlines,
        *,
        topic: TopicName,
        group: str,
        settings: Callable[[], GroupSettings],
        lives: Callable[[str], bool],
    ) -> None:
        self.topic = topic
        self.group = group
        self._settings = settings
        self._lives = lives
        self._broker = broker
        self._clock = clock
        self._tasks = tasks
        self._deadlines = deadlines
        self.links: dict[int, Link] = {}
        self._count = -1
        self._look_at = 0.0
        self._role = ""
        self._told = settings()
        self._filter = EVERYTHING
        self._line: deque[_Receiver] = deque()
        self._woken = asyncio.Event()
        self._serving = False
        self._opening = asyncio.Lock()
        self._turn = 0
        self._used_at = clock.monotonic()

    # --- receiving ---------------------------------------------------------------------------------------

    async def receive(self, want: "Want", wait_s: float) -> list[Received]:
        """Receive up to `want.count` messages as soon as any are ready; [] after `wait_s`. Raises ReadStuckError
        from time to time if the messages of a partition cannot be read; other partitions are not affected."""
        self._used_at = self._clock.monotonic()
        await self.open(want.role, want.filter)
        found = [] if self._serving else self._at_hand(want.count)
        if not found and wait_s > 0:
            found = await self._wait(want.count, wait_s)
        self._used_at = self._clock.monotonic()
        return [
            one for link, deliveries in found for one in link.hand_out(deliveries, want.invisible_ms, want.client)
        ]

    def _at_hand(self, wanted: int) -> _Found:
        found: _Found = []
        links = list(self.links.values())
        self._turn += 1
        for at in range(len(links)):
            link = links[(self._turn + at) % len(links)]
            try:
                deliveries = link.take(wanted)
            except ConsumerClosedError:
                continue
            if deliveries:
                mine, rest, left = _split(deliveries, wanted)
                self._leave(link, rest)
                found.append((link, mine))
                wanted = left
                if wanted <= 0:
                    break
        return found

    async def _wait(self, wanted: int, wait_s: float) -> _Found:
        receiver = _Receiver(wanted)
        self._line.append(receiver)
        if not self._serving:
            self._serving = True
            self._tasks.spawn(self._serve(), f"{self.group} at {self.topic}")
        timer = self._clock.call_later(wait_s, lambda: self._give(receiver, []))
        try:
            return await receiver.future
        except asyncio.CancelledError:
            self._leave_line(receiver)
            if receiver.future.done() and not receiver.future.cancelled():
                for link, deliveries in [] if receiver.future.exception() else receiver.future.result():
                    self._leave(link, deliveries)
                self._woken.set()
            raise
        finally:
            timer.cancel()

    def _give(self, receiver: _Receiver, found: _Found) -> None:
        self._leave_line(receiver)
        if not receiver.future.done():
            receiver.future.set_result(found)
            return
        for link, deliveries in found:  # its call ended in this turn of the event loop
            self._leave(link, deliveries)

    def _fail(self, receiver: _Receiver, why: ReadStuckError) -> None:
        self._leave_line(receiver)
        if not receiver.future.done():
            receiver.future.set_exception(why)

    def _leave_line(self, receiver: _Receiver) -> None:
        if receiver in self._line:
            self._line.remove(receiver)
            if not self._line:
                self._woken.set()

    async def _serve(self) -> None:
        """Fetch messages while receivers wait."""
        try:
            while self._line:
                await self._round(self._line[0])
        finally:
            self._serving = False
            while self._line:
                self._give(self._line[0], [])

    async def _round(self, first: _Receiver) -> None:
        loop = asyncio.get_running_loop()
        self._woken.clear()
        spare = [(link, link.take_spare()) for link in self.links.values() if link.spare]
        if spare:
            self._hand_on(spare)
            return
        asked = {
            loop.create_task(link.consumer.next(first.wanted)): link for link in self.links.values() if link.alive
        }
        if not asked:
            self._give(first, [])
            return
        woken = loop.create_task(self._woken.wait())
        try:
            await asyncio.wait([*asked, woken], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*asked, woken):
                task.cancel()
            await asyncio.gather(*asked, woken, return_exceptions=True)
            came: _Found = []
            stuck: ReadStuckError | None = None
            for task, link in asked.items():
                if task.cancelled():
                    continue
                failed = task.exception()
                if failed is None:
                    came.append((link, task.result()))
                elif isinstance(failed, ReadStuckError):  # the next round reads it again
                    stuck = failed
                else:
                    self._close_soon(link)
            self._hand_on(came)
            if stuck is not None and first in self._line:
                self._fail(first, stuck)

    def _hand_on(self, came: _Found) -> None:
        """Give deliveries to waiting receivers in their order, and keep the rest for the next receiver."""
        while came and self._line:
            receiver = self._line[0]
            found: _Found = []
            left = receiver.wanted
            while came and left > 0:
                link, deliveries = came.pop(0)
                mine, rest, left = _split(deliveries, left)
                found.append((link, mine))
                if rest and self._settings().fifo:  # the receiver has earlier messages of the same message groups
                    self._leave(link, rest)
                elif rest:
                    came.insert(0, (link, rest))
            self._give(receiver, found)
        for link, deliveries in came:
            self._leave(link, deliveries)

    def _leave(self, link: Link, deliveries: list[Delivery]) -> None:
        """Keep deliveries whose receiver left for the next receiver. In a FIFO group, return them to the consumer,
        because earlier messages may have to be settled first."""
        if deliveries and self._settings().fifo:
            link.consumer.give_back(deliveries)
        else:
            link.spare += deliveries

    def _close_soon(self, link: Link) -> None:
        """Drop a link after the broker closed its consumer; the next receive opens another."""
        if self.links.get(link.partition) is link:
            del self.links[link.partition]
            self._tasks.spawn(link.close(), "close")
        if not self.links:
            while self._line:
                self._give(self._line[0], [])

    # --- subscriptions -----------------------------------------------------------------------------------

    async def open(self, role: str, wanted: MessageFilter | None = None) -> None:
        """Subscribe to the partitions of this broker that have no subscription yet. `wanted`: the receiver's
        filter; as in RocketMQ, the latest filter applies to the whole group."""
        if wanted is not None and wanted != self._filter:
            async with self._opening:
                self._filter = wanted
                await self.close()
        if self.links and self._clock.monotonic() < self._look_at and self._all_alive():
            return
        async with self._opening:
            await self._open(role)

    def has_queue(self, number: int) -> bool:
        """Whether the group is subscribed to a partition; -1: to any."""
        if number < 0:
            return bool(self.links) and self._all_alive()
        link = self.links.get(number)
        return link is not None and link.alive

    def _all_alive(self) -> bool:
        return all(link.alive for link in self.links.values())

    async def look(self) -> None:
        """Apply changed group settings, and while receivers wait, subscribe to partitions moved to this broker."""
        self._settings_now()
        if self._line:
            try:
                await self.open(self._role)
            except WeirError:
                return  # the next receive raises it

    async def _open(self, role: str) -> None:
        self._role = role
        self._look_at = self._clock.monotonic() + LOOK_S
        for link in [link for link in self.links.values() if not link.alive]:
            self._close_soon(link)
        partitions = await self._broker.partitions(self.topic, role=role)
        before = len(self.links)
        elsewhere: WeirError | None = None
        for number in range(max(1, partitions)):
            name = self.topic.at(number) if partitions else self.topic
            if number in self.links:
                continue
            owner = await self._broker.owner(name, role=role)
            if not owner.here:
                elsewhere = NotOwnerError(f"{name} is served by another broker")
                continue
            try:
                await self._subscribe(role, number, name)
            except MOVED as moved:
                elsewhere = moved
        self._count = len(self.links)
        if len(self.links) != before:
            self._woken.set()
        if not self.links:
            raise elsewhere or NotOwnerError(f"{self.topic} is served by another broker")

    async def _subscribe(self, role: str, number: int, name: TopicName) -> None:
        topic = await self._broker.topic(name, role=role)
        said = self._said({})
        consumer = await topic.subscribe(
            SubscribeRequest(
                role,
                self.group,
                SubscriptionType.SHARED,
                consumer_name=f"rocketmq-{self.group}",
                start=StartAt(0),
                per_message=True,
                turns=True,
                filter=self._filter,
                client_version="rocketmq",
                subscription_properties=said,
            )
        )
        self._say(topic)
        self.links[number] = Link(number, topic, consumer, self._deadlines, self._lives)

    def _said(self, before: Mapping[str, str]) -> dict[str, str]:
        """Subscription properties with the group's settings."""
        settings = self._settings()
        found = with_retry(before, settings.retry(self.group))
        found.pop(FIFO_PROPERTY, None)
        return found | {FIFO_PROPERTY: "true"} if settings.fifo else found

    def _say(self, topic: Topic) -> None:
        """Apply the group's settings to its subscription, which may have been created earlier."""
        control = None if topic.stored is None else topic.stored.subscriptions.get(self.group)
        if control is not None:
            wanted = self._said(control.properties)
            if wanted != control.properties:
                control.set_properties(wanted)

    async def seek(self, role: str, offset_in: Callable[[Topic], Awaitable[int]]) -> None:
        """Move the group to other offsets; handles of messages received before become invalid."""
        await self.open(role)
        for link in list(self.links.values()):
            await link.consumer.seek(await offset_in(link.topic))
            self._close_soon(link)

    @property
    def lost(self) -> bool:
        """Whether a subscribed partition was closed because it moved or was deleted."""
        return len(self.links) < self._count or any(not link.alive for link in self.links.values())

    def _settings_now(self) -> None:
        """Update the subscriptions if the group's settings changed."""
        settings = self._settings()
        if settings != self._told:
            self._told = settings
            for link in self.links.values():
                self._say(link.topic)

    def free(self, client: str) -> None:
        for link in self.links.values():
            link.free(client)

    def idle_since(self, moment: float) -> bool:
        return self._used_at < moment and not self._line and not any(link.pending for link in self.links.values())

    async def close(self) -> None:
        links, self.links = list(self.links.values()), {}
        for link in links:
            await link.close()


async def receive_any(
    topics: Sequence[GroupTopic], want: Want, wait_s: float, changed: asyncio.Event
) -> list[Received]:
    """Receive from the first of several topics with ready messages. Returns [] if one of them is closed or
    `changed` is set; the caller then determines the topics again. The caller must set `changed` at its timeout."""
    for topic in topics:
        if found := await topic.receive(want, 0):
            return found
    loop = asyncio.get_running_loop()
    tasks = {loop.create_task(topic.receive(want, wait_s)): topic for topic in topics}
    woken = loop.create_task(changed.wait())
    try:
        while not woken.done():
            waiting = [task for task in tasks if not task.done()]
            await asyncio.wait([woken, *waiting], return_when=asyncio.FIRST_COMPLETED)
            if any(_is_news(task, topic) for task, topic in tasks.items() if task.done()):
                break
    finally:
        woken.cancel()
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    return [one for found in ended if isinstance(found, list) for one in found]


def _is_news(task: "asyncio.Task[list[Received]]", topic: GroupTopic) -> bool:
    return task.exception() is None and (bool(task.result()) or topic.lost)


def _split(deliveries: list[Delivery], wanted: int) -> tuple[list[Delivery], list[Delivery], int]:
    """The first `wanted` messages, the rest, and how many messages are missing up to `wanted`."""
    mine: list[Delivery] = []
    for at, delivery in enumerate(deliveries):
        count = delivery.batch.count if delivery.wanted is None else delivery.wanted.bit_count()
        if count > wanted:
            indices = list(range(delivery.batch.count) if delivery.wanted is None else indices_of(delivery.wanted))
            rest = Delivery(delivery.batch, bits_at(indices[wanted:], delivery.batch.count), delivery.redelivered)
            if wanted:
                mine.append(
                    Delivery(delivery.batch, bits_at(indices[:wanted], delivery.batch.count), delivery.redelivered)
                )
            return mine, [rest, *deliveries[at + 1 :]], 0
        mine.append(delivery)
        wanted -= count
    return mine, [], wanted
