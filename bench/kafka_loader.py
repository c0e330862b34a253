"""A load on a broker by librdkafka, in a process of its own: `python -m bench.kafka_loader ROLE '{...}'`.

It says `ready` once it is connected, begins at a line on its standard input, and ends with one JSON object on its
standard output.
"""

import json
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from bench.loaders import wait_for_go
from bench.stats import latencies_us

Params = dict[str, Any]
Found = dict[str, float]

_STAMP = 8
_TIMEOUT_S = 60.0
_AT_ONCE = 10_000


def payload(size: int, number: int = 0) -> bytes:
    """Bytes of which LZ4 saves about two thirds, as of records of an application."""
    dice = Random(number)
    words = [f"{dice.getrandbits(24):06x}" for _ in range(16)]
    text = ",".join(f'"{dice.choice(words)}":{dice.getrandbits(8)}' for _ in range(size // 8 + 1))
    return text.encode()[:size]


def _producer(params: Params, **more: Any) -> Producer:
    settings = {
        "bootstrap.servers": params["url"],
        "acks": "all",
        "linger.ms": 5,
        "batch.size": 1 << 20,
        "batch.num.messages": 100_000,
        "compression.type": params.get("compression", "none"),
        "queue.buffering.max.messages": 500_000,
        "queue.buffering.max.kbytes": 1 << 18,
        "log_level": 3,
    }
    return Producer(settings | more)


def _produce(params: Params) -> Found:
    """Send for so many seconds without waiting for each, spread over the partitions, then wait for the last."""
    producer = _producer(params)
    producer.list_topics(params["topic"], timeout=_TIMEOUT_S)
    values = [payload(params["size"], number) for number in range(32)]
    partitions = params["partitions"]
    failed: list[str] = []

    def sent(error: Any, _message: Any) -> None:
        if error is not None:
            failed.append(str(error))

    wait_for_go()
    started, cpu = time.monotonic(), time.process_time()
    end, count, topic, send = started + params["seconds"], 0, params["topic"], producer.produce
    # Only failures call back: a call of Python per message would be the client's cost, not the broker's.
    while time.monotonic() < end:
        for number in range(128):
            try:
                send(topic, values[number & 31], None, count % partitions, on_delivery=None)
            except BufferError:
                producer.poll(0.01)
                break
            count += 1
    while not _sent_last(producer, topic, sent):
        producer.poll(0.01)
    if producer.flush(_TIMEOUT_S) or failed:
        raise SystemExit(f"sends failed: {failed[:1]}")
    count += 1
    seconds = time.monotonic() - started
    return {"count": count, "seconds": seconds, "cpu_s": time.process_time() - cpu}


def _sent_last(producer: Producer, topic: str, sent: Callable[[Any, Any], None]) -> bool:
    """Whether there was room in the queue for a message that says how it went."""
    try:
        producer.produce(topic, b"last", None, 0, on_delivery=sent)
    except BufferError:
        return False
    return True


def _consume(params: Params) -> Found:
    """Read everything that was announced, from all partitions."""
    consumer = _consumer(params)
    consumer.list_topics(params["topic"], timeout=_TIMEOUT_S)
    wait_for_go()
    started, cpu = time.monotonic(), time.process_time()
    consumer.assign([TopicPartition(params["topic"], number, 0) for number in range(params["partitions"])])
    left, idle_since = params["count"], started
    while left > 0:
        messages = consumer.consume(min(left, _AT_ONCE), 0.2)  # the last ones are not waited for in vain
        left -= len(messages)
        now = time.monotonic()
        if messages:
            idle_since = now
        elif now - idle_since > _TIMEOUT_S:
            raise SystemExit(f"{left} of {params['count']} messages never came")
    seconds = time.monotonic() - started
    consumer.close()
    return {"count": params["count"], "seconds": seconds, "cpu_s": time.process_time() - cpu}


def _consumer(params: Params, **more: Any) -> Consumer:
    settings = {
        "bootstrap.servers": params["url"],
        "group.id": "bench",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "queued.max.messages.kbytes": 1 << 18,
        "fetch.max.bytes": 1 << 26,
        "max.partition.fetch.bytes": 1 << 22,
        "fetch.queue.backoff.ms": 1,
        "check.crcs": False,
        "log_level": 3,
    }
    return Consumer(settings | more)


def _send_at(params: Params) -> Found:
    """Send at a fixed rate; each message carries the moment at which it was due."""
    producer = _producer(params, **{"linger.ms": params["linger_ms"]})
    producer.list_topics(params["topic"], timeout=_TIMEOUT_S)
    padding, rate = payload(params["size"] - _STAMP), params["rate"]
    acknowledged: list[int] = []
    wait_for_go()
    started, cpu = time.monotonic_ns(), time.process_time()
    for number in range(params["count"]):
        due = started + number * 1_000_000_000 // rate
        while (left := due - time.monotonic_ns()) > 0:
            producer.poll(min(left / 1e9, 0.001))

        def done(_error: Any, _message: Any, due: int = due) -> None:
            acknowledged.append(time.monotonic_ns() - due)

        producer.produce(params["topic"], due.to_bytes(_STAMP, "big") + padding, partition=0, on_delivery=done)
    producer.flush(_TIMEOUT_S)
    return latencies_us(acknowledged[params["warm"] :]) | {"cpu_s": time.process_time() - cpu}


def _receive_at(params: Params) -> Found:
    """Receive as messages come, and note how old each is."""
    consumer = _consumer(params, **{"fetch.wait.max.ms": 100})
    consumer.assign([TopicPartition(params["topic"], 0, 0)])
    wait_for_go()
    ages: list[int] = []
    deadline = time.monotonic() + params["count"] / params["rate"] + _TIMEOUT_S
    while len(ages) < params["count"]:
        message = consumer.poll(1.0)
        if message is None or message.error():
            if time.monotonic() > deadline:
                raise SystemExit(f"only {len(ages)} of {params['count']} messages came")
            continue
        ages.append(time.monotonic_ns() - int.from_bytes(message.value()[:_STAMP], "big"))
    consumer.close()
    return latencies_us(ages[params["warm"] :])


_ROLES: dict[str, Callable[[Params], Found]] = {
    "produce": _produce,
    "consume": _consume,
    "send-at": _send_at,
    "receive-at": _receive_at,
}

if __name__ == "__main__":
    try:
        print(json.dumps(_ROLES[sys.argv[1]](json.loads(sys.argv[2]))), flush=True)
    except KafkaException as failed:
        raise SystemExit(f"the client failed: {failed}") from failed
