"""Producers of both protocols that say how long a partition kept them waiting."""

import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import pulsar
from confluent_kafka import KafkaError, Producer

#: A message to each partition this often: no pause is seen shorter than it is by more than this.
_EVERY_S = 0.02
_PATIENCE_S = 60.0


class Waits:
    """How long messages to each partition waited for their acknowledgement. Fed by a client's threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._longest: dict[int, float] = {}
        self._latest: dict[int, float] = {}
        self.failures: list[str] = []

    def acknowledged(self, partition: int, sent_at: float) -> None:
        waited = time.monotonic() - sent_at
        with self._lock:
            self._longest[partition] = max(self._longest.get(partition, 0.0), waited)
            self._latest[partition] = max(self._latest.get(partition, 0.0), sent_at)

    def begin(self) -> None:
        """Count anew. What was sent before counts, too, as it is acknowledged."""
        with self._lock:
            self._longest.clear()

    def longest_s(self, partitions: Iterable[int]) -> list[float]:
        """Of each partition, once something was acknowledged that was sent from now on."""
        wanted, now = set(partitions), time.monotonic()
        deadline = now + _PATIENCE_S
        while True:
            with self._lock:
                if all(self._latest.get(partition, 0.0) >= now for partition in wanted):
                    return [self._longest[partition] for partition in sorted(wanted)]
            if time.monotonic() > deadline:
                raise SystemExit(f"no acknowledgement for {_PATIENCE_S:g} s; {self.failures[:3]}")
            time.sleep(0.005)


class KafkaWaits(Waits):
    """librdkafka with its defaults, idempotent."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__()
        self._topic, self._partitions = topic, partitions
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka")
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            due = time.monotonic() + _EVERY_S
            for partition in range(self._partitions):
                told = partial(self._told, partition, time.monotonic())
                self._producer.produce(self._topic, b"x" * 100, partition=partition, on_delivery=told)
            while (left := due - time.monotonic()) > 0:
                self._producer.poll(left)
        self._producer.flush(_PATIENCE_S)

    def _told(self, partition: int, sent_at: float, failure: KafkaError | None, message: object) -> None:
        if failure is None:
            self.acknowledged(partition, sent_at)
        else:
            self.failures.append(str(failure))

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


class PulsarWaits(Waits):
    """Pulsar's C++ client with its defaults, a producer per partition."""

    def __init__(self, url: str, topic: str, partitions: int) -> None:
        super().__init__()
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
        self._client = pulsar.Client(url, logger=quiet)
        self._producers = [
            self._client.create_producer(f"{topic}-partition-{n}", send_timeout_millis=int(_PATIENCE_S * 1000))
            for n in range(partitions)
        ]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulsar")
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(_EVERY_S):
            for partition, producer in enumerate(self._producers):
                producer.send_async(b"x" * 100, partial(self._told, partition, time.monotonic()))

    def _told(self, partition: int, sent_at: float, result: Any, message_id: object) -> None:
        if result == pulsar.Result.Ok:
            self.acknowledged(partition, sent_at)
        else:
            self.failures.append(str(result))

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._client.close()
