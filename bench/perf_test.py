"""RabbitMQ's own load tool, PerfTest: started, read line by line, and weighed with the broker.

Its JVM compiles for some seconds: what it says before the warm-up is over does not count, for CPU time neither.
"""

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, median

from bench.brokers import cpu_s
from bench.maven import Artifacts

VERSION = "2.22.1"
ARTIFACTS = Artifacts(f"perf-test-{VERSION}", (f"com.rabbitmq:perf-test:{VERSION}",))
#: Publishes that a producer with confirms has under way at the most, and messages that a consumer has in hand.
OUTSTANDING = 500
_SECOND = re.compile(
    r"time ([\d.]+) s, sent: ([\d.]+) msg/s,.*? received: ([\d.]+) msg/s"
    r"(?:, min/median/75th/95th/99th consumer latency: [\d.]+/([\d.]+)/[\d.]+/[\d.]+/([\d.]+) µs)?"
)
_GRACE_S = 60


@dataclass(frozen=True, slots=True)
class Load:
    """What is published and consumed. `queues`: as many producers and consumers. `fanout`: one producer, and so
    many consumers that each get everything. `rate`: of each producer, 0 for as fast as it goes."""

    key: str
    size: int
    durable: bool
    queues: int = 1
    fanout: int = 0
    rate: int = 0
    seconds: int = 6
    warm_s: int = 4


@dataclass(frozen=True, slots=True)
class Told:
    """Messages a second, microseconds from publish to delivery, CPU seconds of broker and client, and for how many
    deliveries."""

    sent_s: float
    received_s: float
    p50_us: float
    p99_us: float
    broker_cpu_s: float
    client_cpu_s: float
    deliveries: float


def command(url: str, load: Load) -> list[str]:
    small = ("-Xms512m", "-Xmx512m", "-XX:+UseSerialGC")
    arguments = ["--uri", url, "--size", str(load.size), "--interval", "1", "--qos", str(OUTSTANDING)]
    arguments += ["--time", str(load.seconds + load.warm_s + 1)]
    name = f"perf-{load.key.replace(' ', '-').replace(',', '')}"
    if load.fanout:
        arguments += ["--producers", "1", "--consumers", str(load.fanout), "--type", "fanout", "--exchange", name]
    elif load.queues > 1:
        arguments += [
            "--producers",
            str(load.queues),
            "--consumers",
            str(load.queues),
            "--queue-pattern",
            f"{name}-%d",
        ]
        arguments += ["--queue-pattern-from", "1", "--queue-pattern-to", str(load.queues)]
    else:
        arguments += ["--producers", "1", "--consumers", "1", "--queue", name]
    if load.durable:
        arguments += ["--flag", "persistent", "--confirm", str(OUTSTANDING), "--auto-delete", "false"]
    if load.rate:
        arguments += ["--rate", str(load.rate)]
    return ["java", *small, "-cp", ARTIFACTS.classpath, "com.rabbitmq.perf.PerfTest", *arguments]


def run(url: str, load: Load, broker_pid: Callable[[], int]) -> Told:
    """Run it against a broker, and weigh both."""
    process = subprocess.Popen(command(url, load), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    heard: list[str] = []
    seconds: list[tuple[float, float, float, float, float]] = []
    start = end = (cpu_s(broker_pid()), 0.0)
    began = 0.0
    try:
        for line in process.stdout:
            heard.append(line)
            found = _SECOND.search(line)
            if found is None:
                continue
            time_s, sent, received, p50, p99 = (float(part or 0) for part in found.groups())
            if time_s < load.warm_s:
                start, began = (cpu_s(broker_pid()), cpu_s(process.pid)), time_s
            elif len(seconds) < load.seconds:
                seconds.append((sent, received, p50, p99, time_s - began))
                end, began = (cpu_s(broker_pid()), cpu_s(process.pid)), time_s
        process.wait(_GRACE_S)
    finally:
        process.kill()
        process.wait()
    if not any(each[1] for each in seconds):
        raise SystemExit("PerfTest ended without a result:\n" + "".join(heard[-40:]))
    return Told(
        sent_s=mean(each[0] for each in seconds),
        received_s=mean(each[1] for each in seconds),
        p50_us=median(each[2] for each in seconds),
        p99_us=median(each[3] for each in seconds),
        broker_cpu_s=end[0] - start[0],
        client_cpu_s=end[1] - start[1],
        deliveries=sum(each[1] * each[4] for each in seconds),
    )
