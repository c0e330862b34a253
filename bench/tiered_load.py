"""Reading a whole topic with Kafka's and Pulsar's own clients: from ledgers, and from the lake once they are gone.

The broker is started anew before each read: nothing is in its memory. What the table has does not matter here, so
nothing is exported: the position of the lake's subscription is set as if it were.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pulsar
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.case import Measured, Params, case
from weir.client.admin import Access
from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.settings import KafkaSettings, parse_servers
from weir.model.topics import NamespaceName
from weir.spark.lake.catalog import Definition, turn_on
from weir.spark.lake.topics import keep
from weir.testing.processes.both_clients import Kafka
from weir.testing.processes.s3 import S3Server
from weir.testing.processes.up import UpProcess

_TOPIC, _PART = "history", "history-partition-0"
_TIMEOUT_S = 120.0


@case("tiered")
def tiered(params: Params, folder: str) -> Measured:
    """`store`: where the ledgers go, `folder` or `s3`."""
    server = S3Server.start(Path(folder)) if params["store"] == "s3" else None
    if server is not None:
        os.environ.update(server.environment)
    messages, size = params["messages"], params["size"]
    up = UpProcess(Path(folder), "broker.maintenance_interval=100ms", "storage.cache_bytes=1MiB").start()
    try:
        kafka = Kafka(up.kafka)
        kafka.create(_TOPIC, 1)
        _fill(up, messages, size)
        found = _reads(up, messages, "ledgers")
        begun = time.perf_counter()
        _tier(up, folder, server)
        found["copied MB/s"] = messages * size / 1e6 / (time.perf_counter() - begun)
        return found | _reads(up, messages, "lake")
    finally:
        up.close()
        if server is not None:
            server.close()


def _fill(up: UpProcess, messages: int, size: int) -> None:
    producer = Producer(
        {"bootstrap.servers": up.kafka, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
    )
    body = os.urandom(size)
    for _ in range(messages):
        producer.produce(_TOPIC, body)
        producer.poll(0)
    assert producer.flush(_TIMEOUT_S) == 0


def _reads(up: UpProcess, messages: int, where: str) -> Measured:
    found: Measured = {}
    for client, read in (("kafka", _by_kafka), ("pulsar", _by_pulsar)):
        up.kill()
        up.start()
        first_s, whole_s = read(up, messages)
        found[f"{client} {where} messages/s"] = messages / whole_s
        found[f"{client} {where} first ms"] = first_s * 1000
    return found


def _timed(messages: int, take: Callable[[], int]) -> tuple[float, float]:
    """Seconds to the first message, and to the last; `take` answers how many came."""
    begun, first, count = time.perf_counter(), 0.0, 0
    while count < messages:
        assert time.perf_counter() - begun < _TIMEOUT_S
        count += take()
        if count and not first:
            first = time.perf_counter() - begun
    return first, time.perf_counter() - begun


def _by_kafka(up: UpProcess, messages: int) -> tuple[float, float]:
    reader = Consumer({"bootstrap.servers": up.kafka, "group.id": "none", "enable.auto.commit": False})
    reader.assign([TopicPartition(_TOPIC, 0, 0)])
    try:
        return _timed(messages, lambda: sum(m.error() is None for m in reader.consume(1000, 0.1)))
    finally:
        reader.close()


def _by_pulsar(up: UpProcess, messages: int) -> tuple[float, float]:
    client = pulsar.Client(up.pulsar_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))
    try:
        reader = client.create_reader(_PART, pulsar.MessageId.earliest, receiver_queue_size=5000)

        def one() -> int:
            reader.read_next(int(_TIMEOUT_S * 1000))
            return 1

        return _timed(messages, one)
    finally:
        client.close()


def _tier(up: UpProcess, folder: str, server: S3Server | None) -> None:
    access = Access(up.http_url, patience_s=10.0)
    to = f"file://{folder}/lake" if server is None else f"s3://{server.bucket}/lake"
    options = {} if server is None else {"s3.endpoint": server.url}
    wanted = Definition(to, "sqlite:///nowhere", options, tiered_after_ms=0)
    turn_on(access, NamespaceName.parse("public/default"), None, wanted)
    with Cluster(KafkaSettings(parse_servers(up.kafka))) as cluster:
        keep(cluster, {Partition(_TOPIC, 0): _stats(up)["endOffset"]})
    deadline = time.monotonic() + _TIMEOUT_S
    while (_stats(up)["lake"] or {}).get("endOffset") != _stats(up)["endOffset"]:
        assert time.monotonic() < deadline, _stats(up)["lake"]
        time.sleep(0.02)


def _stats(up: UpProcess) -> dict[str, Any]:
    with urlopen(f"{up.http_url}/admin/v2/persistent/public/default/{_PART}/stats") as answer:
        found: dict[str, Any] = json.load(answer)
        return found
