"""What tests look at and put in, in a broker's own words: topics and queues, whatever protocol they came by."""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from weir.broker.api.producers import Outgoing, ProducerRequest
from weir.broker.api.queues import QueueMessages
from weir.broker.api.topics import LogReader, Topic
from weir.broker.queues.memory_queue import MemoryQueue
from weir.broker.subscriptions.selectors import murmur3_32
from weir.model.batch import Batch, BatchFlags, BatchFormat
from weir.model.errors import NamespaceNotFoundError, TopicNotFoundError
from weir.model.messages import Message
from weir.model.registry import SYSTEM_TENANTS
from weir.model.topics import DEFAULT_NAMESPACE, NamespaceName, TopicName, full_name, plain_name
from weir.server.compose.composed import ComposedBroker
from weir.wire.formats.messages import encode_message, encode_messages
from weir.wire.formats.table import messages_of

#: Between two looks at what somebody waits for.
_LOOK_S = 0.005
_READ_BYTES = 8 * 1024 * 1024

Item = dict[str, Any]


class Looking:
    """`role`: whom the test acts as. Names are of topics, short ones of `public/default`, or of AMQP's queues of
    the vhost `/`."""

    def __init__(self, composed: ComposedBroker, role: str) -> None:
        self._composed = composed
        self._broker = composed.broker
        self._role = role

    # --- putting in ---------------------------------------------------------------------------------------------

    async def produce(
        self,
        name: str,
        messages: Sequence[Item],
        *,
        partition: int | None = None,
        delay_s: float = 0.0,
    ) -> None:
        now_ms = self._composed.runtime.clock.wall_ms()
        deliver_at_ms = now_ms + int(delay_s * 1000) if delay_s else None
        made = [_made(message, now_ms) for message in messages]
        queue = await self._memory_queue(name)
        if queue is not None:
            await queue.publish(QueueMessages([encode_message(m) for m in made], deliver_at_ms=deliver_at_ms))
            return
        topic_name = TopicName.parse(name)
        count = await self._broker.partitions(topic_name, role=self._role)
        for part in range(max(1, count)):
            here = [m for m in made if not count or _partition_of(m, count, partition) == part]
            if not here:
                continue
            topic = await self._broker.load(topic_name.at(part) if count else topic_name)
            producer = await topic.produce(ProducerRequest(self._role))
            try:
                payload = encode_messages(here)
                outgoing = Outgoing(payload, len(here), BatchFormat.MESSAGES, deliver_at_ms=deliver_at_ms)
                await producer.publish(outgoing)
            finally:
                await producer.close()

    # --- looking ------------------------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """Every topic that somebody made, partitioned ones once."""
        found: set[str] = set()
        registry = self._composed.registry
        for tenant in registry.tenants.names():
            for namespace in registry.namespaces.names(tenant):
                if tenant not in SYSTEM_TENANTS:
                    found |= {_short(record.name) async for record in registry.topics.of(namespace)}
        return sorted(found)

    async def messages(self, name: str) -> list[Item]:
        """Those that a new reader would see, partition by partition; of a queue in memory, those in it."""
        queue = await self._memory_queue(name)
        if queue is not None:
            batches = await _all(queue.log.start_offset, queue.log.end_offset, queue.log.read)
            return [item for batch in batches for item in _items(name, None, batch, None, [])]
        found: list[Item] = []
        for topic in await self._parts(name):
            reader, end = topic.reader(), topic.stable_offset
            batches = await _all(reader.start_offset, end, reader.read)
            aborted = topic.aborted(reader.start_offset, end)
            gone = [(each.producer_id, each.first_offset, each.last_offset) for each in aborted]
            part = topic.name.partition
            for batch in batches:
                found += _items(_short(topic.name.base), part, batch, _visible(reader, batch), gone)
        return found

    async def wait_messages(self, name: str, count: int, timeout_s: float) -> list[Item]:
        """All, once there are so many; what there is, if time is up before."""

        async def enough() -> bool:
            return await self._upper_bound(name) >= count and len(await self.messages(name)) >= count

        await _until(enough, timeout_s)
        return await self.messages(name)

    async def backlogs(self, name: str, subscription: str | None) -> dict[str, int]:
        """How much is not acknowledged, by subscription (or group, or queue)."""
        queue = await self._memory_queue(name)
        if queue is not None:
            counts = await queue.counts()
            return {name: counts.ready + counts.unacked}
        found: dict[str, int] = {}
        for topic in await self._parts(name):
            stored = topic.stored
            for kept, control in {} if stored is None else stored.subscriptions.items():
                if subscription is None or subscription in (kept, full_name(kept), plain_name(kept)):
                    found[plain_name(kept)] = found.get(plain_name(kept), 0) + control.backlog
        return found

    async def wait_empty(self, name: str, subscription: str | None, timeout_s: float) -> dict[str, int]:
        """The backlogs, once there are any and all are 0; what they are, if time is up before."""

        async def empty() -> bool:
            found = await self.backlogs(name, subscription)
            return bool(found) and not any(found.values())

        await _until(empty, timeout_s)
        return await self.backlogs(name, subscription)

    # --- names --------------------------------------------------------------------------------------------------

    async def _memory_queue(self, name: str) -> MemoryQueue | None:
        namespace, queue_name = DEFAULT_NAMESPACE, name
        tenant, slash, rest = name.partition("/")
        if slash and "/" in rest and "://" not in name:
            folder, _, queue_name = rest.partition("/")
            namespace = NamespaceName(tenant, folder)
        try:
            found = (await self._composed.queues.open(namespace)).find(queue_name)
        except NamespaceNotFoundError:
            return None
        return found if isinstance(found, MemoryQueue) else None

    async def _parts(self, name: str) -> list[Topic]:
        topic_name = TopicName.parse(name)
        try:
            count = await self._broker.partitions(topic_name, role=self._role, create=False)
            names = [topic_name.at(part) for part in range(count)] if count else [topic_name]
            return [await self._broker.load(each, create=False) for each in names]
        except (TopicNotFoundError, NamespaceNotFoundError):
            return []

    async def _upper_bound(self, name: str) -> int:
        """No more messages than this are there; cheap to ask."""
        queue = await self._memory_queue(name)
        if queue is not None:
            return queue.log.end_offset - queue.log.start_offset
        return sum(topic.stable_offset - topic.reader().start_offset for topic in await self._parts(name))


async def _until(condition: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
    """By the clock that nobody moves."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not await condition() and loop.time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_S)


async def _all(start: int, end: int, read: Callable[[int, int], Awaitable[list[Batch]]]) -> list[Batch]:
    found: list[Batch] = []
    while start < end:
        batches = [batch for batch in await read(start, _READ_BYTES) if batch.base_offset < end]
        if not batches:
            break
        found += batches
        start = batches[-1].end_offset
    return found


def _visible(reader: LogReader, batch: Batch) -> int | None:
    return None if reader.whole else reader.visible(batch)


def _items(
    name: str, part: int | None, batch: Batch, visible: int | None, aborted: list[tuple[int, int, int]]
) -> Iterator[Item]:
    if batch.flags & (BatchFlags.CONTROL | BatchFlags.HIDDEN):
        return
    stamp = batch.stamp
    if batch.flags & BatchFlags.TRANSACTIONAL and stamp is not None:
        for producer_id, first, last in aborted:
            if producer_id == stamp.producer_id and first <= batch.base_offset < last:
                return
    for index, message in enumerate(messages_of(batch)):
        if visible is None or visible >> index & 1:
            yield _item(name, part, batch.base_offset + index, message, batch.append_ms)


def _item(name: str, part: int | None, offset: int, message: Message, append_ms: int) -> Item:
    return {
        "topic": name,
        "partition": part,
        "offset": offset,
        "key": _text(message.key),
        "value": _text(message.value),
        "headers": [(header, _text(value)) for header, value in message.headers],
        "publish_ms": message.publish_ms,
        "stored_ms": append_ms,
    }


def _text(data: object) -> str | None:
    return None if data is None else base64.b64encode(memoryview(data)).decode()  # type: ignore[arg-type]


def _made(item: Item, now_ms: int) -> Message:
    key, value = (None if item[name] is None else base64.b64decode(item[name]) for name in ("key", "value"))
    headers = [(name, base64.b64decode(text)) for name, text in item["headers"]]
    return Message(key, value, headers, publish_ms=now_ms)


def _partition_of(message: Message, count: int, wanted: int | None) -> int:
    if wanted is not None:
        if not 0 <= wanted < count:
            raise ValueError(f"there is no partition {wanted}: the topic has {count}")
        return wanted
    return (murmur3_32(message.key) & 0x7FFFFFFF) % count if message.key is not None else 0


def _short(name: TopicName) -> str:
    """As people say it: without what is the default."""
    local = name.local_with_partition
    return local if name.namespace == DEFAULT_NAMESPACE and name.persistent else str(name)
