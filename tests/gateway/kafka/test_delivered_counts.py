"""What Kafka's consumers read is counted per topic."""

import json
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

from confluent_kafka import Consumer, Producer

from weir.testing.processes.up import UpProcess

MESSAGES = 40


def read_all(bootstrap: str, topic: str, group: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    found = 0
    while found < MESSAGES:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        found += 1
    consumer.close()


def test_what_two_groups_read_is_in_the_stats_of_the_topic_and_in_the_metrics(
    weir: UpProcess, bootstrap: str, topic: str, until: Callable[[Callable[[], Any]], None]
) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(MESSAGES):
        producer.produce(topic, b"v%d" % number, partition=0)
        if not number % 10:
            producer.flush()
    producer.flush()
    for group in ("first", "second"):
        read_all(bootstrap, topic, f"{group}-{topic}")
    path = f"{weir.http_url}/admin/v2/persistent/public/default/{topic}/partitioned-stats"
    until(lambda: json.load(urlopen(path))["msgRateOut"] > 0)  # a mean over a second at least
    stats = json.load(urlopen(path))
    assert stats["msgOutCounter"] == 2 * MESSAGES
    assert stats["bytesOutCounter"] >= 2 * stats["bytesInCounter"] > 0
    metrics = urlopen(f"{weir.http_url}/metrics").read().decode()
    (line,) = [
        line
        for line in metrics.splitlines()
        if line.startswith("weir_topic_delivered_messages_total{") and f"{topic}-partition-0" in line
    ]
    assert float(line.rsplit(maxsplit=1)[1]) == 2 * MESSAGES
