"""Kafka's official client under load: an idempotent producer, a transactional one, and a group that reads along.

Each remembers what it was told, and says at the end what of it is not so.
"""

import threading
import time
from collections import defaultdict
from functools import partial
from itertools import pairwise
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from weir.testing.soak.pauses import Pauses

PARTITIONS = 6
_PATIENCE_S = 180.0
#: Messages of one transaction, each in another partition.
_TOGETHER = 3
_ABORT_EVERY = 5


class IdempotentLoad:
    """Numbered messages, paced, each into partition `number % PARTITIONS`."""

    name = "kafka idempotent"

    def __init__(self, bootstrap: str, topic: str, pause_s: float) -> None:
        self._bootstrap, self._topic, self._pause_s = bootstrap, topic, pause_s
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "delivery.timeout.ms": int(_PATIENCE_S * 1000),
                "socket.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,  # that brokers go away is what this is for
            }
        )
        self.pauses = Pauses()
        self.acknowledged: set[int] = set()
        self.failures: list[str] = []
        self._sent = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name)
        self._thread.start()

    @property
    def count(self) -> int:
        return len(self.acknowledged)

    def _run(self) -> None:
        while not self._stopping.is_set():
            number = self._sent
            try:
                self._producer.produce(
                    self._topic,
                    str(number).encode(),
                    partition=number % PARTITIONS,
                    on_delivery=partial(self._told, number),
                )
                self._sent += 1
            except BufferError:
                pass
            self._producer.poll(self._pause_s)
        if self._producer.flush(_PATIENCE_S):
            self.failures.append("not everything was answered at the end")

    def _told(self, number: int, failure: KafkaError | None, message: object) -> None:
        if failure is None:
            self.acknowledged.add(number)
            self.pauses.acknowledged(number % PARTITIONS)
        else:
            self.failures.append(f"{number}: {failure}")

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def wrong(self) -> list[str]:
        """What was promised and is not so."""
        found = [f"refused: {failure}" for failure in self.failures[:5]]
        stored: set[int] = set()
        for partition, values in read_all(self._bootstrap, self._topic).items():
            numbers = [int(value) for value in values]
            if any(later <= earlier for earlier, later in pairwise(numbers)):
                found.append(f"partition {partition} has repeated or disordered messages")
            stored.update(numbers)
        lost = sorted(self.acknowledged - stored)
        if lost:
            found.append(f"{len(lost)} acknowledged messages are lost: {lost[:10]}")
        return found


class GroupLoad:
    """Members of one consumer group on what the idempotent producer writes; positions are committed as they go."""

    name = "kafka group"

    def __init__(self, bootstrap: str, topic: str, members: int = 2) -> None:
        self.pauses = Pauses()
        self.received: set[int] = set()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        conf = {
            "bootstrap.servers": bootstrap,
            "group.id": "soak",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 500,
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 1_000,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,  # that brokers go away is what this is for
        }
        self._threads = [
            threading.Thread(target=self._run, args=(Consumer(conf), topic), name=self.name)
            for _ in range(members)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def count(self) -> int:
        return len(self.received)

    def _run(self, consumer: Consumer, topic: str) -> None:
        consumer.subscribe([topic])
        while not self._stopping.is_set():
            message = consumer.poll(0.2)
            if message is None or message.error() is not None:
                continue
            with self._lock:
                self.received.add(int(message.value() or b"-1"))
            self.pauses.acknowledged(message.partition() or 0)
        consumer.close()

    def wait_for(self, numbers: set[int]) -> None:
        """Until it has received all of these, or has had all the time that there is."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            with self._lock:
                if numbers <= self.received:
                    return
            time.sleep(0.1)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def missing(self, numbers: set[int]) -> list[str]:
        lost = sorted(numbers - self.received)
        return [f"the group never saw {len(lost)} acknowledged messages: {lost[:10]}"] if lost else []


class TransactionalLoad:
    """Transactions of three messages in as many partitions; every fifth is aborted."""

    name = "kafka transactions"

    def __init__(self, bootstrap: str, topic: str, pause_s: float) -> None:
        self._bootstrap, self._topic, self._pause_s = bootstrap, topic, pause_s
        self.pauses = Pauses()
        self.committed: set[int] = set()
        self.aborted: set[int] = set()
        self.failures: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name)
        self._thread.start()

    @property
    def count(self) -> int:
        return len(self.committed)

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            try:
                producer = self._begin_anew()
                while not self._stopping.is_set():
                    self._one(producer, number)
                    number += 1
                    self._stopping.wait(self._pause_s)
            except KafkaException as failed:
                # Of this transaction nothing is known; a new producer of the same id ends what is open.
                number += 1
                if not self._stopping.is_set():
                    self.failures.append(str(failed.args[0]))
                    time.sleep(0.2)

    def _begin_anew(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": "soak",
                "transaction.timeout.ms": 30_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,  # that brokers go away is what this is for
                "linger.ms": 2,
            }
        )
        _again(lambda: producer.init_transactions(30))
        return producer

    def _one(self, producer: Producer, number: int) -> None:
        """All or nothing; raises if this producer is of no more use."""
        producer.begin_transaction()
        try:
            for n in range(_TOGETHER):
                producer.produce(self._topic, str(number).encode(), partition=(number + n) % PARTITIONS)
            if number % _ABORT_EVERY == _ABORT_EVERY - 1:
                producer.flush(_PATIENCE_S)
                _again(lambda: producer.abort_transaction(30))
                self.aborted.add(number)
            else:
                _again(lambda: producer.commit_transaction(30))
                self.committed.add(number)
        except KafkaException as failed:
            if not failed.args[0].txn_requires_abort():
                raise
            _again(lambda: producer.abort_transaction(30))
            self.aborted.add(number)
        self.pauses.acknowledged()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def wrong(self) -> list[str]:
        """What was promised and is not so. That a transaction's outcome was never told is no fault."""
        found: list[str] = []
        seen: dict[int, int] = defaultdict(int)
        for values in read_all(self._bootstrap, self._topic).values():
            for value in values:
                seen[int(value)] += 1
        halves = sorted(number for number, times in seen.items() if times != _TOGETHER)
        if halves:
            found.append(f"{len(halves)} transactions are neither whole nor nothing: {halves[:10]}")
        lost = sorted(self.committed - set(seen))
        if lost:
            found.append(f"{len(lost)} committed transactions are lost: {lost[:10]}")
        undead = sorted(self.aborted & set(seen))
        if undead:
            found.append(f"{len(undead)} aborted transactions are seen: {undead[:10]}")
        return found


def _again(step: Any) -> None:
    """Until it is done; what cannot be mended by trying again is raised."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            step()
        except KafkaException as failed:
            if not failed.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return


def read_all(bootstrap: str, topic: str) -> dict[int, list[bytes]]:
    """Everything committed, by partition, in order, up to the end as it is now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "soak-reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    ended: set[int] = set()
    deadline = time.monotonic() + _PATIENCE_S
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, (
            f"partitions {set(found) - ended} of {topic} could not be read to the end"
        )
        message = consumer.poll(1.0)
        if message is None:
            continue
        partition = message.partition()
        assert partition is not None
        failure = message.error()
        if failure is None:
            found[partition].append(message.value() or b"")
            ended.discard(partition)
        elif failure.code() == KafkaError._PARTITION_EOF:
            ended.add(partition)
    consumer.close()
    return found
