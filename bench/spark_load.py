"""Topics through Spark: Weir and its source and sink, and Apache Kafka with Spark's own connector."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from bench import spark_peer
from bench.brokers import KAFKAS, Broker
from bench.case import Measured, Params, case
from bench.kafka_load import create, first_message_s
from bench.kafka_loader import payload
from bench.stats import latencies_us

_JOB = Path(__file__).with_name("spark_job.py")
_PARTITIONS = 4
_TIMEOUT_S = 600


def _command(broker: Broker, params: Params, folder: str, job: str) -> tuple[list[str], dict[str, str] | None]:
    ours = params["broker"] == "weir"
    wanted = {
        "job": job,
        "format": "weir" if ours else "kafka",
        "url": broker.url,
        "folder": folder,
        "rows": params.get("rows", 0),
        "rounds": params.get("rounds", 1),
        "config": params.get("config", {}),
        "jars": [] if ours else spark_peer.jars(),
    }
    return [sys.executable, str(_JOB), json.dumps(wanted)], None if ours else spark_peer.environment()


def _fill(broker: Broker, topic: str, rows: int, size: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": broker.url,
            "linger.ms": 20,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": 500_000,
            "acks": "all",
        }
    )
    values = [payload(size, number) for number in range(32)]
    for number in range(rows):
        while True:
            try:
                producer.produce(topic, values[number & 31], b"%d" % (number & 1023), number % _PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(120):
        raise SystemExit("the topic could not be filled")


@case("spark.batch")
def batch(params: Params, folder: str) -> Measured:
    """Rows per second of batch reads and writes."""
    broker = KAFKAS[params["broker"]](Path(folder), sync=True)
    try:
        first_message_s(broker, "first")
        for topic in ("rows", "target"):
            create(broker, topic, _PARTITIONS)
        _fill(broker, "rows", params["rows"], params["size"])
        command, environment = _command(broker, params, folder, "batch")
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
        if done.returncode:
            raise SystemExit(done.stderr[-4000:])
        found: Measured = json.loads(done.stdout.splitlines()[-1])
        return found
    finally:
        broker.stop()


@case("spark.latency")
def latency(params: Params, folder: str) -> Measured:
    """From a message's production to its arrival in the topic that a running query writes."""
    broker = KAFKAS[params["broker"]](Path(folder), sync=True)
    try:
        first_message_s(broker, "first")
        for topic in ("live", "seen"):
            create(broker, topic, 1)
        command, environment = _command(broker, params, folder, "stream")
        job = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        if job.stdout is None or job.stdout.readline().strip() != "ready":
            raise SystemExit("the query did not start")
        ages = _through(broker, params)
        said, _ = job.communicate("enough\n", timeout=_TIMEOUT_S)
        return latencies_us(ages[len(ages) // 3 :]) | json.loads(said.splitlines()[-1])
    finally:
        broker.stop()


def _through(broker: Broker, params: Params) -> list[int]:
    """Ages of messages when they come out, in nanoseconds. The first one is waited for, since the query starts its
    workers for it; after the first third of the others it is warm."""
    count, rate = params["count"], params["rate"]
    consumer = Consumer(
        {
            "bootstrap.servers": broker.url,
            "group.id": "ages",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 50,
        }
    )
    consumer.assign([TopicPartition("seen", 0, 0)])
    producer = Producer({"bootstrap.servers": broker.url, "linger.ms": 0})

    def send() -> None:
        started = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, started + number / rate - time.monotonic()))
            producer.produce("live", time.monotonic_ns().to_bytes(8, "big"))
            producer.poll(0)
        producer.flush(60)

    producer.produce("live", time.monotonic_ns().to_bytes(8, "big"))
    producer.flush(60)
    _arrived(consumer, 1)
    sender = threading.Thread(target=send)
    sender.start()
    ages = _arrived(consumer, count)
    sender.join()
    consumer.close()
    return ages


def _arrived(consumer: Consumer, count: int) -> list[int]:
    """How old so many messages were when they came."""
    ages: list[int] = []
    deadline = time.monotonic() + _TIMEOUT_S
    while len(ages) < count:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            ages.append(time.monotonic_ns() - int.from_bytes(message.value(), "big"))
        elif time.monotonic() > deadline:
            raise SystemExit(f"only {len(ages)} of {count} messages came through")
    return ages
