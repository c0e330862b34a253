"""`python -m bench.rocketmq_load`: Weir beside Apache RocketMQ, with RocketMQ's Java client, in turns.

Both flush before they acknowledge. Three rounds, each of both one after the other; the median of a row counts.
Sending with 64 calls at once at 128 B and 4 KiB, FIFO, delayed and in transactions; receiving and acknowledging by
8 threads; p99 from send to listener at 200 messages a second; the time to start and the memory after all that.
`--quick`: one round of a tenth of the messages. `--only delay`: only what is sent or received under that name.
Ends with 77 if something is not to be had.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.foreign_clients import MissingError
from bench.rocketmq_clients import PROGRAMS
from bench.rocketmq_peer import TITLE, RocketmqPeer, missing
from weir.testing.processes.up import UpProcess

MISSING = 77
_TIMEOUT_S = 300
_LOADS: tuple[tuple[str, str, str, int, int], ...] = (
    ("send, 128 B", "send", "NORMAL", 20_000, 128),
    ("send, 4 KiB", "send", "NORMAL", 10_000, 4096),
    ("FIFO, 128 B", "fifo", "FIFO", 20_000, 128),
    ("delay, 128 B", "delay", "DELAY", 20_000, 128),
    ("transaction, 128 B", "transaction", "TRANSACTION", 3_000, 128),
)
_RECEIVED = (("receive, 128 B", "send, 128 B"), ("receive, 4 KiB", "send, 4 KiB"))


def _load(command: list[str], endpoint: str, *words: object) -> dict[str, float]:
    done = subprocess.run(
        [*command, endpoint, *map(str, words)], capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
    )
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stdout}{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _memory_mib(pids: list[int]) -> float:
    pages = [Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0] for pid in pids]
    return round(sum(map(int, pages)) / 1024)


class _Weir:
    def __init__(self, folder: Path) -> None:
        self._up = UpProcess(folder)

    def __enter__(self) -> "_Weir":
        self._up.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._up.close()

    @property
    def endpoint(self) -> str:
        return self._up.rocketmq

    @property
    def pids(self) -> list[int]:
        return [self._up.pid]

    def make_topic(self, name: str, kind: str) -> None:
        """By its first client."""

    def make_group(self, name: str) -> None:
        """By its first client."""


def measured(broker: Any, part: float, only: str) -> dict[str, float]:
    """What one broker does, by row."""
    command = PROGRAMS.java("Load", "-Xmx512m")
    began = time.perf_counter()
    with broker:
        found: dict[str, float] = {"start, s": round(time.perf_counter() - began, 2)}
        topics: dict[str, tuple[str, int]] = {}
        for row, what, kind, count, size in _LOADS:
            if only not in row:
                continue
            topic = f"bench-{len(topics)}"
            topics[row] = topic, int(count * part)
            broker.make_topic(topic, kind)
            found[row] = _load(command, broker.endpoint, what, topic, int(count * part), size)["per_s"]
        for row, sent in _RECEIVED:
            if sent not in topics:
                continue
            topic, count = topics[sent]
            broker.make_group("bench")
            found[row] = _load(command, broker.endpoint, "receive", topic, count, 0, "bench")["per_s"]
        broker.make_topic("bench-latency", "NORMAL")
        broker.make_group("bench-latency")
        took = _load(command, broker.endpoint, "latency", "bench-latency", int(1000 * part), 128, "bench-latency")
        found["p99 end to end, ms"] = took["p99_ms"]
        found["memory, MiB"] = _memory_mib(broker.pids)
    return found


def main() -> int:
    part, rounds = (0.1, 1) if "--quick" in sys.argv else (1.0, 3)
    only = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else ""
    try:
        PROGRAMS.java("Load")
    except MissingError as why:
        print(why)
        return MISSING
    if why := missing():
        print(why)
        return MISSING
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    for _ in range(rounds):
        for found, broker in ((ours, _Weir), (theirs, RocketmqPeer)):
            with tempfile.TemporaryDirectory() as folder:
                found.append(measured(broker(Path(folder)), part, only))
            print(broker.__name__.strip("_"), found[-1], file=sys.stderr, flush=True)
    print(f"| | Weir | {TITLE} | ratio |\n| --- | --- | --- | --- |")
    for row in ours[0]:
        mine, other = (statistics.median(one[row] for one in found) for found in (ours, theirs))
        print(f"| {row} | {mine:g} | {other:g} | {mine / other:.2g} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
