"""Publishes of one connection: producers per topic and partition, and batches per receive buffer.

Messages of one receive buffer for the same partition become one entry. The answer to a send follows when its
messages are stored. Delayed and half messages are stored in entries of their own, because each needs a position.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from weir.broker.api.producers import Outgoing, Producer, ProducerRequest, Receipt
from weir.broker.api.topics import Topic
from weir.gateway.rocketmq.errors import MOVED
from weir.model.batch import BatchFormat
from weir.model.errors import WeirError
from weir.model.ids import Buffer
from weir.model.topics import TopicName
from weir.runtime.waiters import Waiters
from weir.wire.formats.messages import join_messages
from weir.wire.rocketmq.message import queue_of

if TYPE_CHECKING:
    from weir.gateway.rocketmq.session import Session


class PublishedTopic:
    """Producers for the partitions of a topic on this broker, which may own none. Call `open` before use, and
    whenever `ready` is false."""

    def __init__(self, session: "Session", role: str, name: TopicName) -> None:
        self._session = session
        self._role = role
        self.name = name
        self.count = 0
        self._partitioned = False
        self._topics: dict[int, Topic] = {}
        self._producers: dict[int, Producer] = {}
        self._turn = 0
        self._opening = asyncio.Lock()

    @property
    def ready(self) -> bool:
        return bool(self._producers) and all(map(self._is_usable, self._topics))

    def _is_usable(self, number: int) -> bool:
        """False if the partition has moved, or a failed write has closed its producer."""
        return self._topics[number].alive and self._producers[number].open

    async def open(self) -> None:
        """Open producers for partitions of this broker that have none. TopicNotFoundError, NotAuthorisedError."""
        async with self._opening:
            for number in [number for number in self._topics if not self._is_usable(number)]:
                del self._topics[number]
                await self._producers.pop(number).close()
            broker = self._session.services.broker
            partitions = await broker.partitions(self.name, role=self._role)
            self.count, self._partitioned = max(1, partitions), partitions > 0
            failed: WeirError | None = None
            for number in range(self.count):
                if number in self._producers or not (await broker.owner(self.part(number), role=self._role)).here:
                    continue
                try:
                    await self._open(number)
                except MOVED:
                    continue  # the sender asks its new owner
                except WeirError as refused:
                    failed = refused
            if failed is not None and not self._producers:
                raise failed

    async def _open(self, number: int) -> None:
        topic = await self._session.services.broker.topic(self.part(number), role=self._role)
        request = ProducerRequest(self._role, address=self._session.peer)
        self._producers[number] = await topic.produce(request)
        self._topics[number] = topic

    def part(self, number: int) -> TopicName:
        return self.name.at(number) if self._partitioned else self.name

    def next(self) -> tuple[int, Producer | None]:
        """The next partition in round-robin order and its producer; None if this broker owns no partition."""
        self._turn += 1
        numbers = list(self._producers)
        if not numbers:
            return self._turn % self.count, None
        number = numbers[self._turn % len(numbers)]
        return number, self._producers[number]

    def of_group(self, group: str) -> tuple[int, Producer | None]:
        """The partition of a message group, the same for all senders; None if another broker owns it."""
        number = queue_of(group, self.count)
        return number, self._producers.get(number)

    def producer(self, number: int) -> Producer | None:
        return self._producers.get(number)

    async def close(self) -> None:
        producers, self._producers, self._topics = self._producers, {}, {}
        for producer in producers.values():
            await producer.close()


#: Callback with the receipt or error of an entry, and the number of messages in the entry before the sender's.
Stored = Callable[[Receipt | WeirError, int], None]
_BATCH_BYTES = 1024 * 1024
_BATCH_MESSAGES = 4096


class _Batch:
    """Messages for one partition, with the callbacks of their senders."""

    __slots__ = ("encoded", "size", "wanting")

    def __init__(self) -> None:
        self.encoded: list[Buffer] = []
        self.size = 0
        #: Index of each sender's first message, and its callback.
        self.wanting: list[tuple[int, Stored]] = []


class Publishing:
    """Publishes of one session, collected in batches per partition until `flush`."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._batches: dict[Producer, _Batch] = {}
        self._topics: dict[tuple[str, TopicName], PublishedTopic] = {}
        self._touched: dict[Producer, None] = {}
        self._under_way = 0
        self._under_way_bytes = 0
        self._change = Waiters()

    def topic_now(self, role: str, name: TopicName) -> PublishedTopic | None:
        """The topic if its producers are open and ready, else None."""
        found = self._topics.get((role, name))
        return found if found is not None and found.ready else None

    async def topic(self, role: str, name: TopicName) -> PublishedTopic:
        """The topic, after its producers are opened. TopicNotFoundError, NotAuthorisedError."""
        key = (role, name)
        found = self._topics.get(key)
        if found is None:
            found = self._topics[key] = PublishedTopic(self._session, role, name)
        await found.open()
        return found

    # --- batches -----------------------------------------------------------------------------------------

    def add(self, producer: Producer, encoded: Sequence[Buffer], stored: Stored) -> None:
        """Add messages without delay to a batch. Calls `stored` with the receipt of the entry, and the number of
        messages in the entry before these."""
        batch = self._batches.get(producer)
        if batch is None:
            batch = self._batches[producer] = _Batch()
        batch.wanting.append((len(batch.encoded), stored))
        batch.encoded += encoded
        batch.size += sum(map(len, encoded))
        if batch.size >= _BATCH_BYTES or len(batch.encoded) >= _BATCH_MESSAGES:
            del self._batches[producer]
            self._hand_over(producer, batch)

    def put(self, producer: Producer, outgoing: Outgoing, stored: Stored) -> None:
        """Publish a message as an entry of its own."""
        self._publish(producer, outgoing, [(0, stored)])

    def flush(self) -> None:
        batches, self._batches = self._batches, {}
        for producer, batch in batches.items():
            self._hand_over(producer, batch)

    def _hand_over(self, producer: Producer, batch: _Batch) -> None:
        payload = join_messages(batch.encoded)
        self._publish(producer, Outgoing(payload, len(batch.encoded), BatchFormat.MESSAGES), batch.wanting)

    def _publish(self, producer: Producer, outgoing: Outgoing, wanting: list[tuple[int, Stored]]) -> None:
        self._touched[producer] = None
        self._under_way += outgoing.count
        self._under_way_bytes += len(outgoing.payload)
        done = producer.publish(outgoing)
        done.add_done_callback(partial(self._stored, outgoing, wanting))

    def _stored(
        self, outgoing: Outgoing, wanting: list[tuple[int, Stored]], done: "asyncio.Future[Receipt]"
    ) -> None:
        self._under_way -= outgoing.count
        self._under_way_bytes -= len(outgoing.payload)
        self._change.wake()
        result: Receipt | WeirError
        if done.cancelled():
            result = WeirError("the broker is closing")
        else:
            failure = done.exception()
            if failure is None:
                result = done.result()
            else:
                result = (
                    failure
                    if isinstance(failure, WeirError)
                    else WeirError("the broker could not store the message")
                )
        for before, stored in wanting:
            stored(result, before)

    # --- back-pressure ------------------------------------------------------------------------------------

    async def wait_capacity(self) -> None:
        """Wait while in-flight sends exceed their limits, and for each topic without capacity."""
        limits = self._session.limits
        while self._under_way > limits.max_sends or self._under_way_bytes > limits.max_send_bytes:
            await self._change.wait()
        touched, self._touched = self._touched, {}
        for producer in touched:
            try:
                await producer.wait_capacity()
            except WeirError:
                continue  # the next send reports it

    async def settled(self) -> None:
        """Flush, and wait until all messages are stored or refused."""
        self.flush()
        while self._under_way:
            await self._change.wait()

    async def close(self) -> None:
        for topic in self._topics.values():
            await topic.close()
