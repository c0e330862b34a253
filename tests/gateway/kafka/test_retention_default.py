"""Nothing vanishes by default, whichever protocol made the topic."""

import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pulsar

from weir.testing.processes.up import UpProcess

TIMEOUT_S = 60
NOTHING = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}


def admin(up: UpProcess, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    url = f"{up.http_url}/admin/v2/persistent/public/default/{path}"
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        found = answer.read()
    return json.loads(found) if found else None


def wait_empty(up: UpProcess, topic: str) -> None:
    """Until upkeep has come round to a topic that keeps nothing, and so to all others, too."""
    deadline = time.monotonic() + TIMEOUT_S
    while admin(up, "GET", f"{topic}/internalStats")["numberOfEntries"]:
        assert time.monotonic() < deadline, "nothing was trimmed"
        time.sleep(0.05)


def test_what_pulsars_producer_sent_outlives_a_restart_though_nobody_has_subscribed(
    start_weir: Callable[..., UpProcess], topic: str
) -> None:
    up = start_weir("broker.maintenance_interval=50ms")
    beside = f"{topic}-beside"
    client = pulsar.Client(up.pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    for name in (topic, beside):
        producer = client.create_producer(name)
        for at in range(20):
            producer.send(b"%d" % at)
    client.close()
    admin(up, "POST", f"{beside}/retention", NOTHING)
    assert up.stop() == 0
    up.start()
    wait_empty(up, beside)
    settings = {"bootstrap.servers": up.kafka, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found = []
    while len(found) < 20:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.error() is None
        found.append(message.value())
    consumer.close()
    assert found == [b"%d" % at for at in range(20)]
