"""Pulsar's official client under load: a producer on a partitioned topic, and shared consumers."""

import threading
import time
from functools import partial
from typing import Any

import pulsar

from weir.testing.soak.pauses import Pauses

PARTITIONS = 6
_PATIENCE_S = 180.0


class PulsarLoad:
    """Numbered messages, paced. What is acknowledged must reach a consumer."""

    name = "pulsar"

    def __init__(self, url: str, topic: str, pause_s: float, log_file: str = "/dev/null") -> None:
        self._pause_s = pause_s
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, log_file)
        self._client = pulsar.Client(url, operation_timeout_seconds=int(_PATIENCE_S), logger=quiet)
        self.pauses = Pauses()
        self.acknowledged: set[int] = set()
        self.received: set[int] = set()
        self.failures: list[str] = []
        self._stopping = threading.Event()
        self._done = threading.Event()
        self._consumers = [
            self._client.subscribe(
                topic,
                "soak",
                consumer_type=pulsar.ConsumerType.Shared,
                initial_position=pulsar.InitialPosition.Earliest,
            )
            for _ in range(2)
        ]
        self._producer = self._client.create_producer(
            topic,
            block_if_queue_full=True,
            batching_enabled=True,
            batching_max_publish_delay_ms=2,
            send_timeout_millis=0,
            message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
        )
        self._threads = [threading.Thread(target=self._produce, name=self.name)]
        self._threads += [threading.Thread(target=self._consume, args=(each,)) for each in self._consumers]
        for thread in self._threads:
            thread.start()

    @property
    def count(self) -> int:
        return len(self.acknowledged)

    def _produce(self) -> None:
        number = 0
        while not self._stopping.is_set():
            self._producer.send_async(str(number).encode(), partial(self._told, number))
            number += 1
            self._stopping.wait(self._pause_s)
        self._producer.flush()

    def _told(self, number: int, result: Any, message_id: Any) -> None:
        if result == pulsar.Result.Ok:
            self.acknowledged.add(number)
            self.pauses.acknowledged(message_id.partition())
        else:
            self.failures.append(f"{number}: {result}")

    def _consume(self, consumer: Any) -> None:
        while not self._done.is_set():
            try:
                message = consumer.receive(200)
            except pulsar.Timeout:
                continue
            self.received.add(int(message.data()))
            consumer.acknowledge(message)

    def stop(self) -> None:
        """Send no more, and wait until what was acknowledged has been received, for as long as there is time."""
        self._stopping.set()
        self._threads[0].join()
        deadline = time.monotonic() + _PATIENCE_S
        while not self.acknowledged <= self.received and time.monotonic() < deadline:
            time.sleep(0.1)
        self._done.set()
        for thread in self._threads:
            thread.join()
        self._client.close()

    def wrong(self) -> list[str]:
        """What was promised and is not so."""
        found = [f"refused: {failure}" for failure in self.failures[:5]]
        lost = sorted(self.acknowledged - self.received)
        if lost:
            found.append(f"{len(lost)} acknowledged messages never came: {lost[:10]}")
        return found
