"""Pulsar's own load tool, `pulsar-perf produce`: started, read line by line, and weighed with the brokers.

Its JVM compiles for some seconds: what it says before the warm-up is over does not count, for CPU time neither.
"""

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO

from bench import apache
from bench.brokers import cpu_s
from bench.maven import Artifacts

#: The first release since the broker's whose tool is to be had; the client in it is the broker's release.
VERSION = "4.0.8"
ARTIFACTS = Artifacts(
    f"pulsar-perf-{VERSION}",
    (f"org.apache.pulsar:pulsar-broker:{apache.VERSION}",),
    alone=(f"org.apache.pulsar:pulsar-testclient:{VERSION}",),
)
#: Messages that a producer has under way at the most; without this it queues without end.
OUTSTANDING = 1000
#: Faster than anything here: it then sends as fast as its window lets it.
UNLIMITED = 10_000_000

_LOGGING = """<Configuration status="warn" shutdownHook="disable">
  <Appenders><Console name="Console"><PatternLayout pattern="%msg%n"/></Console></Appenders>
  <Loggers><Root level="info"><AppenderRef ref="Console"/></Root></Loggers>
</Configuration>
"""
#: Once a second and producer, and once at the end.
_SECOND = re.compile(r"--- Publish throughput: ([\d.]+) msg/s .* Latency: med:")
_END = re.compile(
    r"Aggregated latency stats --- Latency: mean: +([\d.]+) ms - med: +([\d.]+) - 95pct: +([\d.]+)"
    r" - 99pct: +([\d.]+) - 99.9pct: +([\d.]+)"
)
_DONE = "reached the maximum duration"
_GRACE_S = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """What is produced: messages of 1 KiB, each on its own or in the client's batches."""

    topics: int
    rate: int
    seconds: int
    warm_s: int
    batching: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """What the client found: messages a second, milliseconds until the receipt, and what was spent meanwhile."""

    rate: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    messages: float
    #: CPU seconds, by the name of what was watched; the client is `client`.
    cpu_s: dict[str, float]


def command(folder: Path, url: str, load: Load) -> list[str]:
    (folder / "perf.conf").write_text("")
    (folder / "perf-log4j2.xml").write_text(_LOGGING)
    return [
        *("java", "-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-XX:+UseG1GC"),
        *(f"--add-opens={package}=ALL-UNNAMED" for package in apache.OPENED),
        "-Dio.netty.tryReflectionSetAccessible=true",
        f"-Dlog4j2.configurationFile={folder}/perf-log4j2.xml",
        *(
            "-cp",
            ARTIFACTS.classpath,
            "org.apache.pulsar.testclient.PulsarPerfTestTool",
            str(folder / "perf.conf"),
        ),
        *("produce", "-u", url, "-s", "1024", *([] if load.batching else ["-db"])),
        *("-t", str(load.topics), "-r", str(load.rate), "-o", str(OUTSTANDING), "-i", "1"),
        *("--warmup-time", str(load.warm_s), "-time", str(load.warm_s + load.seconds)),
        f"persistent://public/default/perf-{load.topics}-{load.rate}-{load.batching}",
    ]


def produce(folder: Path, url: str, load: Load, watched: Callable[[], dict[str, float]]) -> Told:
    """Run it; `watched` tells the CPU seconds of the brokers so far."""
    process = subprocess.Popen(
        command(folder, url, load), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder
    )
    assert process.stdout is not None
    try:
        return _listen(process, process.stdout, load, watched)
    finally:
        process.kill()
        process.wait()


def _listen(
    process: "subprocess.Popen[str]", said: IO[str], load: Load, watched: Callable[[], dict[str, float]]
) -> Told:
    began: float | None = None
    rates: list[float] = []
    start, spent, heard, messages = {}, {}, [], 0.0
    for line in _lines(said):
        heard.append(line)
        if (second := _SECOND.search(line)) is not None:
            now = time.monotonic()
            began = now if began is None else began
            rates.append(float(second[1]))
            if len(rates) % load.topics:  # one line for each producer
                continue
            if now - began < load.warm_s:
                start, messages, rates = _weigh(process.pid, watched), 0.0, []
            else:
                messages += sum(rates[-load.topics :])
                spent = _weigh(process.pid, watched)
        elif _DONE in line:
            process.terminate()  # it says the rest as it ends, and would else wait for its next round
        elif (end := _END.search(line)) is not None:
            p50, p99, p999 = float(end[2]), float(end[4]), float(end[5])
            seconds = [sum(rates[at : at + load.topics]) for at in range(0, len(rates), load.topics)]
            cpu = {name: spent[name] - start.get(name, 0.0) for name in spent}
            return Told(median(seconds[: load.seconds - 1]), p50, p99, p999, messages, cpu)
    raise SystemExit("pulsar-perf ended without a result:\n" + "".join(heard[-40:]))


def _lines(said: IO[str]) -> Iterator[str]:
    yield from said


def _weigh(client: int, watched: Callable[[], dict[str, float]]) -> dict[str, float]:
    return watched() | {"client": cpu_s(client)}
