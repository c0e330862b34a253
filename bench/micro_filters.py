"""`python -m bench.micro_filters [filters|traces] [MESSAGES]`: what filters and traces cost per message, in CPU.

A topic over fake bookies in the simulated world, so that nothing but the broker's own work is measured: messages
in batches of ten are published and delivered to all subscriptions, with no filter, by tags and by SQL, of which
one message in ten passes; and to one subscription, traced not at all, at 1 % and at 100 %, in turns, of which the
cheapest of each counts: what is done once, such as making the topic of traces, is done before.
"""

import asyncio
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from time import process_time
from typing import Any

from weir.broker.api.consumers import StartAt, SubscribeRequest
from weir.broker.api.producers import Outgoing, ProducerRequest
from weir.model.batch import BatchFormat
from weir.model.ledger import Quorum
from weir.model.messages import Message
from weir.model.policies import Policies
from weir.model.subscriptions import MessageFilter
from weir.model.topics import TopicName
from weir.server.compose.composed import ComposedBroker
from weir.stream.settings import StreamSettings
from weir.testing.broker.fake_storage import compose_on_fakes, stage_composition
from weir.testing.world.world import World, simulate
from weir.wire.formats.messages import encode_messages

BATCH = 10
RATES = (0.0, 0.01, 1.0)
TURNS = 5
FILTERS = {
    "no filter": None,
    "tag": MessageFilter(tags="t0"),
    "SQL": MessageFilter("color = 'c0' AND price BETWEEN 10 AND 2000"),
}


def batch_of(first: int) -> Outgoing:
    messages = [
        Message(
            f"k{n}".encode(),
            b"x" * 128,
            [("TAGS", f"t{n % 10}".encode()), ("color", f"c{n % 10}".encode()), ("price", b"100")],
        )
        for n in range(first, first + BATCH)
    ]
    return Outgoing(encode_messages(messages), BATCH, BatchFormat.MESSAGES)


async def measured(broker: ComposedBroker, name: str, messages: int, subscriptions: int, **how: Any) -> float:
    """CPU seconds to publish and deliver so many messages to so many subscriptions."""
    wanted, policies = how.get("wanted"), how.get("policies")
    topic: Any = await broker.broker.topic(TopicName.parse(name), role="", create=True)
    if policies is not None:
        await topic.apply(policies.over(topic.policies))
    consumers = [
        await topic.subscribe(SubscribeRequest("", f"s{n}", start=StartAt(offset=0), filter=wanted))
        for n in range(subscriptions)
    ]
    producer = await topic.produce(ProducerRequest(""))
    passing = messages if wanted is None else messages // 10
    batches = [batch_of(first) for first in range(0, messages, BATCH)]

    async def consume(consumer: Any) -> None:
        got = 0
        while got < passing:
            found = await consumer.next(1000)
            got += sum(one.batch.count if one.wanted is None else one.wanted.bit_count() for one in found)
            consumer.ack([(one.batch.base_offset, one.batch.end_offset) for one in found])

    began = process_time()
    readers = [asyncio.ensure_future(consume(consumer)) for consumer in consumers]
    for batch in batches:
        await producer.publish(batch)
    await asyncio.gather(*readers)
    await asyncio.sleep(1)  # in simulated time: what is gathered is written
    taken = process_time() - began
    for consumer in consumers:
        await consumer.close()
    return taken


def in_a_world(scenario: Callable[[ComposedBroker], Any]) -> None:
    async def main(world: World) -> None:
        async def on_node(runtime: Any) -> None:
            async with AsyncExitStack() as stack:
                composition = stage_composition(None, streams=StreamSettings(quorum=Quorum(1, 1, 1)))
                broker = await compose_on_fakes(runtime, composition, stack, bookies=1)
                await scenario(broker)

        await world.node("broker").start(on_node)

    simulate(1, main)


async def filters(broker: ComposedBroker, wanted: int) -> None:
    print("filters: CPU µs per message and subscription (and beyond no filter)")
    for subscriptions in (1, 100, 1000):
        messages = max(100, wanted * 10 // subscriptions)
        plain = 0.0
        for name, filter_ in FILTERS.items():
            seconds = await measured(
                broker, f"f{subscriptions}-{name.replace(' ', '')}", messages, subscriptions, wanted=filter_
            )
            each = seconds * 1e6 / messages / subscriptions
            plain = plain or each
            print(f"{subscriptions:>6} subscriptions, {name:<10} {each:8.2f}  ({each - plain:+.2f})", flush=True)


async def traces(broker: ComposedBroker, wanted: int) -> None:
    print("traces: CPU µs per message, published, delivered and acknowledged (and beyond no trace)")
    best: dict[float, float] = {}
    for turn in range(-1, TURNS):
        for rate in RATES:
            policies = Policies(trace_ppm=int(rate * 1_000_000))
            seconds = await measured(broker, f"t{turn + 1}-{int(rate * 100)}", wanted, 1, policies=policies)
            if turn >= 0:
                best[rate] = min(best.get(rate, seconds), seconds)
    for rate, seconds in best.items():
        each = seconds * 1e6 / wanted
        print(f"{rate * 100:>6g} %  {each:8.2f}  ({each - best[0.0] * 1e6 / wanted:+.2f})")


PARTS = {"filters": filters, "traces": traces}


def main() -> None:
    said = sys.argv[1:]
    only = [said.pop(0)] if said and said[0] in PARTS else list(PARTS)
    wanted = int(said[0]) if said else 2000

    async def run(broker: ComposedBroker) -> None:
        await measured(broker, "warm", wanted, 1, wanted=FILTERS["SQL"])
        for name in only:
            await PARTS[name](broker, wanted)

    in_a_world(run)


if __name__ == "__main__":
    main()
