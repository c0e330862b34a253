"""SIGKILL of `weir up` under load from the official client, again and again.

The client reconnects by itself, and everything that was acknowledged is there, in order.
"""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest

from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process

KILLS = 5
KILLS_OF_A_SOAK = 20
STOPS = 3
#: Acknowledged between two kills: none, or one to four times so many.
PROGRESS = 200
TIMEOUT_MS = 60_000


@pytest.fixture
def up(tmp_path: Path) -> Iterator[UpProcess]:
    process = UpProcess(tmp_path)
    yield process
    process.close()


class Load:
    """A producer that keeps many messages under way, and remembers which were acknowledged, and in which order."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self._producer = client.create_producer(
            topic,
            block_if_queue_full=True,
            max_pending_messages=200,
            batching_enabled=True,
            batching_max_publish_delay_ms=2,
            send_timeout_millis=0,  # for ever: reconnecting is the client's job
        )
        self._changed = threading.Condition()
        self._stopping = False
        self.sent = 0
        self.acknowledged: list[int] = []
        self.failures: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            number = self.sent
            self.sent += 1
            self._producer.send_async(str(number).encode(), lambda result, _id, n=number: self._done(result, n))

    def _done(self, result: pulsar.Result, number: int) -> None:
        with self._changed:
            if result == pulsar.Result.Ok:
                self.acknowledged.append(number)
            else:
                self.failures.append(str(result))
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        """Wait until so many are acknowledged in all."""
        with self._changed:
            reached = self._changed.wait_for(lambda: len(self.acknowledged) >= count or self.failures, timeout=120)
        assert reached, f"only {len(self.acknowledged)} of {count} acknowledged"

    def stop(self) -> None:
        self._stopping = True
        self._thread.join()
        self._producer.flush()
        self._producer.close()


class Follower:
    """A consumer that receives and acknowledges through all of it."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self._consumer = client.subscribe(topic, "follower", initial_position=pulsar.InitialPosition.Earliest)
        self.received: list[int] = []
        self._last: int | None = None
        self._deadline = float("inf")  # begins to run when there is nothing left to do but to receive
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while self._last is None or self._last not in self.received[-1000:]:
            if time.monotonic() > self._deadline:
                return
            try:
                message = self._consumer.receive(200)
            except pulsar.Timeout:
                continue
            self.received.append(int(message.data()))
            self._consumer.acknowledge(message)

    def finish(self, last: int) -> None:
        """Wait until it has seen the last number."""
        self._deadline = time.monotonic() + 120
        self._last = last
        self._thread.join()
        self._consumer.close()


@pytest.mark.timeout(290)
@pytest.mark.parametrize("kills", [KILLS, pytest.param(KILLS_OF_A_SOAK, marks=pytest.mark.soak)])
def test_nothing_acknowledged_is_lost_over_kills(up: UpProcess, tmp_path: Path, kills: int) -> None:
    under_fire(up, tmp_path, kills, up.kill)


@pytest.mark.timeout(290)
def test_nothing_acknowledged_is_lost_when_it_is_told_to_end(up: UpProcess, tmp_path: Path) -> None:
    codes: list[int] = []
    under_fire(up, tmp_path, STOPS, lambda: codes.append(up.stop()))
    assert codes == [0] * STOPS


def under_fire(up: UpProcess, folder: Path, times: int, end: Callable[[], None]) -> None:
    """End and restart it under load, so many times; then look whether all is there."""
    up.start()
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(folder / "client.log"))
    client = pulsar.Client(up.pulsar_url, operation_timeout_seconds=60, logger=quiet)
    follower = Follower(client, "under-fire")
    load = Load(client, "under-fire")
    try:
        for time_ in range(times):
            # Now and then it ends again as soon as it is up, amid everyone's return.
            load.wait_for(len(load.acknowledged) + (time_ % 5) * PROGRESS)
            end()
            up.start()
        load.wait_for(len(load.acknowledged) + PROGRESS)
    finally:
        load.stop()
        follower.finish(load.sent - 1)
    assert load.failures == []
    assert load.acknowledged == sorted(load.acknowledged)

    received = receive_all(client, load.sent)
    firsts = list(dict.fromkeys(received))  # what was in flight at an end may be stored twice
    assert firsts == sorted(firsts)
    assert set(load.acknowledged) <= set(firsts)
    assert set(load.acknowledged) <= set(follower.received)
    client.close()


def receive_all(client: pulsar.Client, sent: int) -> list[int]:
    """Everything in the topic, up to the last number that was sent, which was flushed."""
    reader = client.create_reader("under-fire", pulsar.MessageId.earliest)
    received: list[int] = []
    while not received or received[-1] != sent - 1:
        received.append(int(reader.read_next(TIMEOUT_MS).data()))
    while reader.has_message_available():
        received.append(int(reader.read_next(TIMEOUT_MS).data()))
    return received
