"""Functions beside the broker: from a message's receipt to the delivery of what came of it, and rates.

A real `weir up`, a worker process as `weir functions run` starts it, and Kafka's own client at both ends.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.case import Measured, Params, case
from bench.stats import percentile
from weir.client import functions as rest
from weir.client.admin import Access
from weir.client.functions import Definition
from weir.functions.subscriptions import ensure_subscription
from weir.model.topics import TopicName
from weir.testing.processes.up import UpProcess

_IN, _OUT = TopicName.parse("bench-in"), TopicName.parse("bench-out")
_NAME = TopicName.parse("bench")
_TIMEOUT_S = 120.0
_PLAIN = "def f(message): return message"
_COUNT = """
def f(message, context):
    context.state["n"] = context.state.get("n", 0) + 1
    return message
"""


@case("functions.latency")
def latency(params: Params, folder: str) -> Measured:
    """One message every so often: how long it takes from its receipt to what came of it."""
    with _Deployed(folder, stateful=params["stateful"]) as deployed:
        for number in range(20):
            deployed.through(str(number))
        took = sorted(deployed.through(str(number)) for number in range(params["count"]))
    return {"p50_us": 1e6 * percentile(took, 0.5), "p99_us": 1e6 * percentile(took, 0.99)}


@case("functions.rate")
def rate(params: Params, folder: str) -> Measured:
    """As fast as it goes, from the first that is sent to the last that is delivered."""
    with _Deployed(folder, stateful=params["stateful"]) as deployed:
        deployed.through("warm")
        began = time.perf_counter()
        deployed.send(params["count"])
        deployed.receive(params["count"])
        return {"per_s": params["count"] / (time.perf_counter() - began)}


class _Deployed:
    """A Weir with a function that runs."""

    def __init__(self, folder: str, *, stateful: bool) -> None:
        self._up = UpProcess(Path(folder))
        self._stateful = stateful
        self._worker: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "_Deployed":
        self._up.start()
        access = Access(self._up.http_url)
        options = {"stateful": "true"} if self._stateful else {}
        code = _COUNT if self._stateful else _PLAIN
        function = rest.deploy(access, _NAME, Definition(code, "f.py", "f", (_IN,), _OUT, options)).function
        ensure_subscription(access, _IN, function.subscription, earliest=True)
        ensure_subscription(access, _OUT, "bench", earliest=True)
        command = [sys.executable, "-m", "weir.functions.worker", str(_NAME), "--url", self._up.http_url]
        self._worker = subprocess.Popen(command)
        servers: dict[str, Any] = {"bootstrap.servers": self._up.kafka, "log_level": 0}
        self._producer = Producer(servers | {"linger.ms": 0})
        reading = {"group.id": "bench", "isolation.level": "read_committed", "fetch.wait.max.ms": 100}
        self._consumer = Consumer(servers | reading)
        self._consumer.assign([TopicPartition(_OUT.local, 0, 0)])
        return self

    def through(self, value: str) -> float:
        """Seconds from the receipt of one message to the delivery of its output."""
        self._producer.produce(_IN.local, value, key="k")
        self._producer.flush(_TIMEOUT_S)
        began = time.perf_counter()
        self.receive(1)
        return time.perf_counter() - began

    def send(self, count: int) -> None:
        for number in range(count):
            while True:
                try:
                    self._producer.produce(_IN.local, b"x" * 100, key=str(number % 100))
                    break
                except BufferError:
                    self._producer.poll(0.1)
        self._producer.flush(_TIMEOUT_S)

    def receive(self, count: int) -> None:
        found, deadline = 0, time.monotonic() + _TIMEOUT_S
        while found < count:
            found += sum(
                message.error() is None for message in self._consumer.consume(min(1000, count - found), 1.0)
            )
            if time.monotonic() > deadline:
                raise TimeoutError(f"{count - found} of {count} messages did not come")

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
        if self._worker is not None:
            self._worker.send_signal(signal.SIGTERM)
            self._worker.wait(_TIMEOUT_S)
        self._up.close()
