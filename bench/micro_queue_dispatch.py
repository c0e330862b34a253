"""Microseconds of CPU per message of a queue in memory: put in, dispatched and acknowledged, without any protocol.

What a durable queue pays is this, and the log. Of each row the best of some runs: the others were disturbed.
"""

import asyncio
from collections.abc import Callable, Coroutine
from time import process_time
from typing import Any, cast

from weir.broker.api.queues import ConsumeRequest, QueueMessages
from weir.broker.context import BrokerContext
from weir.broker.queues.memory_queue import MemoryQueue
from weir.broker.queues.queue_arguments import rules_of
from weir.broker.settings import BrokerSettings
from weir.model.batch import indices_of
from weir.model.messages import Message
from weir.model.queues import QueueDeclaration, QueueRules
from weir.model.topics import TopicName
from weir.runtime.budgets import ByteBudget
from weir.runtime.real import real_runtime
from weir.runtime.tasks import TaskScope
from weir.wire.formats.messages import encode_message

MESSAGES = 50_000
RUNS = 3


class _Namespace:
    """All that a queue asks of it here."""

    def rules_of(self, declaration: QueueDeclaration) -> QueueRules:
        return rules_of(declaration)


def queue_in_memory(levels: int = 0) -> MemoryQueue:
    settings = BrokerSettings()
    streams: Any = None
    context = BrokerContext(real_runtime(), streams, settings, ByteBudget(1))
    arguments = {"x-max-priority": levels} if levels else {}
    return MemoryQueue(
        context,
        cast("Any", _Namespace()),
        QueueDeclaration("q", durable=False, arguments=arguments),
        connection="",
        scope=TopicName.parse("q"),
        share=ByteBudget(1 << 40).share(),
        tasks=TaskScope("bench"),
    )


def entries(per_entry: int, levels: int = 0) -> list[QueueMessages]:
    """`MESSAGES` of 100 bytes."""
    made = [
        encode_message(
            Message(None, bytes(100), [("weir-priority", b"%d" % (number % (levels + 1)))] if levels else [])
        )
        for number in range(per_entry)
    ]
    return [QueueMessages(made)] * (MESSAGES // per_entry)


async def pass_through(
    per_entry: int, *, consumers: int = 1, prefetch: int = 1000, singly: bool = False, levels: int = 0
) -> float:
    """Each entry is put in, taken by the consumers and acknowledged, as fast as they can."""
    queue = queue_in_memory(levels)
    taking = [await queue.consume(ConsumeRequest("")) for _ in range(consumers)]
    left = MESSAGES

    async def consume(consumer: Any) -> None:
        nonlocal left
        while left > 0:
            for delivery in await consumer.next(prefetch):
                batch = delivery.batch
                if delivery.wanted is None and not singly:
                    consumer.ack([(batch.base_offset, batch.end_offset)])
                    left -= batch.count
                    continue
                indices = range(batch.count) if delivery.wanted is None else indices_of(delivery.wanted)
                for index in indices:
                    consumer.ack([(batch.base_offset + index, batch.base_offset + index + 1)])
                left -= len(indices)

    published = entries(per_entry, levels)
    tasks = [asyncio.ensure_future(consume(consumer)) for consumer in taking]
    began = process_time()
    for messages in published:
        queue.publish(messages)
        await asyncio.sleep(0)
    while left > 0:
        await asyncio.sleep(0)
    took = process_time() - began
    for task in tasks:
        task.cancel()
    return took


async def backlog(*, levels: int = 0, prefetch: int = 1000) -> float:
    """What waits is consumed, requeued as a whole, and consumed again."""
    queue = queue_in_memory(levels)
    for messages in entries(100, levels):
        queue.publish(messages)
    first, second = [await queue.consume(ConsumeRequest("")) for _ in range(2)]
    began = process_time()
    taken = 0
    while taken < MESSAGES:
        for delivery in await first.next(prefetch):
            taken += delivery.batch.count if delivery.wanted is None else delivery.wanted.bit_count()
    await first.close()
    while taken:
        for delivery in await second.next(prefetch):
            taken -= delivery.batch.count if delivery.wanted is None else delivery.wanted.bit_count()
    second.ack([(0, MESSAGES)])
    return process_time() - began


def measure(name: str, work: Callable[[], Coroutine[Any, Any, float]]) -> None:
    best = min(asyncio.run(work()) for _ in range(RUNS))
    print(f"{name:<66}{best / MESSAGES * 1e6:8.2f}")


def main() -> None:
    print(f"{'a queue, 100 B':<66}{'us':>8}")
    measure("entries of 100, one consumer, acknowledged whole", lambda: pass_through(100))
    measure("entries of 100, one consumer, each acknowledged", lambda: pass_through(100, singly=True))
    measure("entries of 100, prefetch 1", lambda: pass_through(100, prefetch=1))
    measure("entries of 100, 10 consumers in turn", lambda: pass_through(100, consumers=10))
    measure("entries of 1, one consumer", lambda: pass_through(1))
    measure("entries of 1, 10 consumers in turn", lambda: pass_through(1, consumers=10))
    measure("entries of 100, 10 levels, one consumer", lambda: pass_through(100, levels=9, singly=True))
    measure("a backlog taken, given back and taken again", backlog)
    measure("a backlog of 10 levels taken, given back and taken again", lambda: backlog(levels=9))


if __name__ == "__main__":
    main()
