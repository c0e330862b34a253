"""A load on a broker, by the official client in a process of its own: `python -m bench.loader ROLE '{...}'`.

It says `ready` once it is connected, begins at a line on its standard input, and ends with one JSON object on its
standard output. Several of them make a load that one Python process cannot; what they cost is part of the result.
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pulsar
import pulsar.asyncio

from bench.loaders import wait_for_go
from bench.stats import latencies_us

Params = dict[str, Any]
Found = dict[str, float]

SUBSCRIPTION = "bench"
_RECEIVE_TIMEOUT_MS = 20_000
#: So many topics are set up at the same time.
_AT_ONCE = 200
_STAMP = 8


def main(role: str, params: Params) -> None:
    if role == "topics":
        asyncio.run(_topics(params))
        return
    client = _client(params["url"])
    try:
        print(json.dumps(_ROLES[role](client, params)), flush=True)
    finally:
        client.close()


def _client(url: str) -> pulsar.Client:
    return pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), io_threads=1)


def _producer(client: pulsar.Client, topic: str, *, batching: bool) -> pulsar.Producer:
    return client.create_producer(
        topic,
        batching_enabled=batching,
        batching_max_publish_delay_ms=1,
        batching_max_messages=1000,
        batching_max_allowed_size_in_bytes=128 * 1024,
        max_pending_messages=10_000 if batching else 2_000,
        block_if_queue_full=True,
    )


def _produce(client: pulsar.Client, params: Params) -> Found:
    """Send for so many seconds without waiting for each, then wait for the last acknowledgement."""
    producer = _producer(client, params["topic"], batching=params["batching"])
    payload = bytes(params["size"])
    # What the sends came to, each kind once; a built-in as callback costs the client least.
    outcomes: dict[Any, Any] = {}
    sent = outcomes.setdefault
    wait_for_go()
    started, cpu = time.monotonic(), time.process_time()
    end, count, send = started + params["seconds"], 0, producer.send_async
    while time.monotonic() < end:
        for _ in range(100):
            send(payload, sent)
        count += 100
    producer.flush()
    seconds = time.monotonic() - started
    if list(outcomes) != [pulsar.Result.Ok]:
        raise SystemExit(f"sends ended with {list(outcomes)}")
    return {"count": count, "seconds": seconds, "cpu_s": time.process_time() - cpu}


def _consume(client: pulsar.Client, params: Params) -> Found:
    """Receive and acknowledge until nothing is left of what was announced."""
    wait_for_go()
    started, cpu = time.monotonic(), time.process_time()
    consumer = client.subscribe(
        params["topic"],
        SUBSCRIPTION,
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=5_000,
    )
    receive, acknowledge = consumer.receive, consumer.acknowledge
    for _ in range(params["count"]):
        acknowledge(receive(_RECEIVE_TIMEOUT_MS))
    seconds = time.monotonic() - started
    found = {"count": params["count"], "seconds": seconds, "cpu_s": time.process_time() - cpu}
    consumer.close()
    return found


def _send_at(client: pulsar.Client, params: Params) -> Found:
    """Send at a fixed rate; each message carries the moment at which it was due, so that a stall shows in all that
    it delayed."""
    producer = _producer(client, params["topic"], batching=params["batching"])
    padding, rate = bytes(params["size"] - _STAMP), params["rate"]
    acknowledged: list[int] = []
    wait_for_go()
    cpu, first = time.process_time(), time.monotonic_ns()
    for number in range(params["count"]):
        due = first + number * 1_000_000_000 // rate
        wait = due - time.monotonic_ns()
        if wait > 0:
            time.sleep(wait / 1e9)
        producer.send_async(
            due.to_bytes(_STAMP, "big") + padding,
            lambda _result, _id, due=due: acknowledged.append(time.monotonic_ns() - due),
        )
    producer.flush()
    return latencies_us(acknowledged[params["warm"] :]) | {"cpu_s": time.process_time() - cpu}


def _receive_at(client: pulsar.Client, params: Params) -> Found:
    """Receive as messages come, and note how old each is."""
    ages: list[int] = []
    done = threading.Event()

    def received(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        ages.append(time.monotonic_ns() - int.from_bytes(message.data()[:_STAMP], "big"))
        consumer.acknowledge(message)
        if len(ages) == params["count"]:
            done.set()

    consumer = client.subscribe(params["topic"], SUBSCRIPTION, message_listener=received)
    wait_for_go()
    if not done.wait(params["count"] / params["rate"] + 30):
        raise SystemExit(f"only {len(ages)} of {params['count']} messages came")
    consumer.close()
    return latencies_us(ages[params["warm"] :])


async def _bounded(work: Iterable[Any]) -> list[Any]:
    """Many coroutines, so many at a time."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(coroutine: Any) -> Any:
        async with places:
            return await coroutine

    return await asyncio.gather(*(one(w) for w in work))


async def _topics(params: Params) -> None:
    """A producer and a message on each of many topics, then messages over all of them, then each topic read."""
    client = pulsar.asyncio.Client(params["url"], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    names = [f"{params['topic']}-{i}" for i in range(params["topics"])]
    payload = bytes(params["size"])
    wait_for_go()
    started = time.monotonic()
    consumers = await _bounded(
        client.subscribe(
            name, SUBSCRIPTION, initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=10
        )
        for name in names
    )
    subscribed = time.monotonic()
    producers = await _bounded(client.create_producer(name, batching_enabled=False) for name in names)
    await _bounded(producer.send(payload) for producer in producers)
    created = time.monotonic()
    for _ in range(params["rounds"]):
        await _bounded(producer.send(payload) for producer in producers)
    sent = time.monotonic()

    async def read(consumer: Any) -> None:
        for _ in range(params["rounds"] + 1):
            await consumer.acknowledge(await consumer.receive())

    await _bounded(read(consumer) for consumer in consumers)
    found = {
        "subscribe_s": subscribed - started,
        "create_s": created - subscribed,
        "send_s": sent - created,
        "read_s": time.monotonic() - sent,
    }
    print(json.dumps(found), flush=True)
    # Its connections stay until the broker has been looked at.
    sys.stdin.readline()
    with suppress(pulsar.asyncio.PulsarException):
        await client.close()


_ROLES: dict[str, Callable[[pulsar.Client, Params], Found]] = {
    "produce": _produce,
    "consume": _consume,
    "send-at": _send_at,
    "receive-at": _receive_at,
}

if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
