"""The second half of the tour: a whole Weir, asked by Pulsar's own client, stopped and started again."""

import asyncio
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from weir.model.errors import WeirError
from weir.runtime.interfaces import Runtime
from weir.server.addresses import Address
from weir.server.broker_node import BrokerNode
from weir.server.config.tree import Config

_MESSAGES = 10_000
_DELAYED_MS = 1_500
#: One consumer's turn at waiting, and how many turns of both may pass with nothing before that is a loss.
_TURN_MS = 50
_QUIET_TURNS = 200

#: Told of each step and what came of it.
Did = Callable[[str, str], None]


def has_client() -> bool:
    """Whether Pulsar's official client is installed here; it is no part of Weir."""
    return importlib.util.find_spec("pulsar") is not None


async def pulsar_tour(runtime: Runtime, folder: str, did: Did) -> None:
    """Produce, stop, start, consume: with the unmodified client, over its own protocol."""
    any_port = Address("127.0.0.1", 0)
    config = Config(data=folder)
    listeners = replace(
        config.listeners, pulsar=any_port, kafka=any_port, amqp=any_port, rocketmq=any_port, http=any_port
    )
    config = replace(config, listeners=listeners)
    for story, step in ((_produce, "produce"), (_consume, "consume")):
        weir = BrokerNode(runtime, config)
        await weir.start()
        try:
            url = f"pulsar://{weir.addresses['pulsar']}"
            # The client blocks, and has threads of its own: it gets one, as it would have its own process.
            did(step, await asyncio.get_running_loop().run_in_executor(None, story, url))
        finally:
            await weir.close()


def _client(url: str) -> Any:
    pulsar = importlib.import_module("pulsar")
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar, pulsar.Client(url, logger=quiet)


def _produce(url: str) -> str:
    pulsar, client = _client(url)
    batching = pulsar.BatchingType.KeyBased
    client.subscribe("orders", "billing", consumer_type=pulsar.ConsumerType.KeyShared).close()
    producer = client.create_producer("orders", batching_type=batching, block_if_queue_full=True)
    failed: list[Any] = []
    for number in range(_MESSAGES):
        producer.send_async(
            b"order %d" % number,
            lambda result, _id: None if result == pulsar.Result.Ok else failed.append(result),
            partition_key=f"customer-{number % 100}",
        )
    producer.flush()
    producer.send(b"reminder", partition_key="later", deliver_after=timedelta(milliseconds=_DELAYED_MS))
    client.close()
    if failed:
        raise WeirError(f"{len(failed)} orders were refused: {failed[0]}")
    later = f"one to be seen in {_DELAYED_MS / 1000:g} s"
    return f"{_MESSAGES} orders by key and {later}, by Pulsar's client; then stopped"


def _consume(url: str) -> str:
    pulsar, client = _client(url)
    consumers = [
        client.subscribe("orders", "billing", consumer_type=pulsar.ConsumerType.KeyShared, consumer_name=name)
        for name in ("left", "right")
    ]
    seen: dict[str, list[int]] = {}
    counts = {"left": 0, "right": 0}
    reminders = quiet = 0
    while sum(map(len, seen.values())) < _MESSAGES or not reminders:
        quiet += 1
        for consumer, name in zip(consumers, counts, strict=True):
            try:
                message = consumer.receive(_TURN_MS if quiet > 1 else 1)
            except pulsar.Timeout:
                continue
            quiet = 0
            consumer.acknowledge(message)
            counts[name] += 1
            if message.data() == b"reminder":
                reminders += 1
            else:
                seen.setdefault(message.partition_key(), []).append(int(message.data().split()[1]))
        if quiet > _QUIET_TURNS:
            raise WeirError(f"only {sum(counts.values())} of {_MESSAGES + 1} messages came")
    client.close()
    if any(numbers != sorted(set(numbers)) for numbers in seen.values()):
        raise WeirError("the orders of some customer came out of order")
    shares = " and ".join(str(count) for count in counts.values())
    shared = f"shared by two consumers ({shares})"
    return f"started again: all of them once, in order per customer, {shared}; the late one too"
