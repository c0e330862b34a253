"""`pulsar-perf produce` against one life of one broker or cluster, with the CPU time of each of its processes."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from bench import apache
from bench.brokers import ApacheBroker, WeirBroker, cpu_s
from bench.case import Measured, Params, case
from bench.perf_client import UNLIMITED, Load, Told, produce
from weir.testing.processes.cluster import ClusterProcess
from weir.testing.processes.up import UpProcess

_START_TIMEOUT_S = 240.0
_START_ATTEMPTS = 3
_MB = 1024 / 1e6  # of one message
#: Once it serves, a broker still sets up for a while.
_SETTLE_S = 3.0


class Served(Protocol):
    """Something that serves Pulsar's clients, in one process or several."""

    url: str

    def start(self) -> None: ...

    def cpu(self) -> dict[str, float]:
        """CPU seconds so far, by role."""

    def stop(self) -> None: ...


class _One:
    """One process: Apache Pulsar, or all of Weir."""

    def __init__(self, broker: ApacheBroker | WeirBroker) -> None:
        self._broker = broker
        self.url = broker.url

    def start(self) -> None:
        self._broker.start()

    def cpu(self) -> dict[str, float]:
        return _threads("broker", self._broker.pid)

    def stop(self) -> None:
        self._broker.stop()


class _Workers:
    """`weir up --workers N`: a supervisor, a storage process, N brokers."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        self._workers = workers
        self.url = ""

    def start(self) -> None:
        for attempt in range(_START_ATTEMPTS):
            self._up = UpProcess(self._folder, f"storage.cache_bytes={apache.CACHE_MIB}MiB")
            self._up.options = ("--workers", str(self._workers))
            try:
                self._up.start()
                break
            except AssertionError:  # somebody else took a port between its choice and its use
                self._up.close()
                if attempt == _START_ATTEMPTS - 1:
                    raise
        self.url = self._up.pulsar_url

    def cpu(self) -> dict[str, float]:
        return _by_role(self._up.pid)

    def stop(self) -> None:
        self._up.stop()
        self._up.close()


class _Cluster:
    """One broker, some bookies and an etcd, each a process."""

    def __init__(self, folder: Path, bookies: int) -> None:
        quorum = "1/1/1" if bookies == 1 else f"{bookies}/2/2"
        self._cluster = ClusterProcess(
            folder, "--brokers", "1", "--bookies", str(bookies), "--set", f"storage.quorum={quorum}"
        )
        self.url = ""

    def start(self) -> None:
        self._cluster.start()
        self.url = self._cluster.pulsar_url

    def cpu(self) -> dict[str, float]:
        spent: dict[str, float] = {}
        for role in ("broker", "bookie"):
            for pid in self._cluster.pids(role).values():
                _add(spent, _threads(role, pid))
        return spent

    def stop(self) -> None:
        self._cluster.stop()
        self._cluster.close()


def _served(params: Params, folder: Path) -> Served:
    kind, count = params["broker"], params.get("count", 0)
    made: dict[str, Callable[[], Served]] = {
        "apache": lambda: _One(ApacheBroker(folder)),
        "weir": lambda: _One(WeirBroker(folder)),
        "workers": lambda: _Workers(folder, count),
        "cluster": lambda: _Cluster(folder, count),
    }
    return made[kind]()


def _add(spent: dict[str, float], more: dict[str, float]) -> None:
    for name, value in more.items():
        spent[name] = spent.get(name, 0.0) + value


def _threads(role: str, pid: int) -> dict[str, float]:
    """Of a process, and of its event loop alone: the rest are threads that write and sync files."""
    return {role: cpu_s(pid), f"{role} loop": cpu_s(pid, pid)}


def _by_role(supervisor: int) -> dict[str, float]:
    spent: dict[str, float] = {}
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    for pid in map(int, children):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        role = "storage" if b"storage" in words else "broker"
        _add(spent, _threads(role, pid))
    return spent


def _wait_until_it_serves(url: str) -> None:
    import pulsar

    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        client = pulsar.Client(
            url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull), operation_timeout_seconds=3
        )
        try:
            client.create_producer("first").send(b"first")
        except pulsar.PulsarException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            break
        finally:
            client.close()
    time.sleep(_SETTLE_S)


def _measure(params: Params, folder: str) -> list[tuple[str, Told]]:
    place = Path(folder)
    served = _served(params, place)
    try:
        served.start()
        _wait_until_it_serves(served.url)
        # Both are warm when they are measured: a JVM compiles, Weir fills its caches.
        produce(place, served.url, Load(1, UNLIMITED, seconds=2, warm_s=4), served.cpu)
        return [
            (load["key"], produce(place, served.url, Load(**load["load"]), served.cpu)) for load in params["loads"]
        ]
    finally:
        served.stop()


@case("perf.produce")
def rates(params: Params, folder: str) -> Measured:
    """Messages a second, latency, and microseconds of CPU per message of each process."""
    found: Measured = {}
    for key, told in _measure(params, folder):
        found |= {f"{key} rate": told.rate, f"{key} p50_ms": told.p50_ms, f"{key} p99_ms": told.p99_ms}
        found[f"{key} p999_ms"] = told.p999_ms
        for role in ("broker", "storage", "client"):
            found[f"{key} {role}_us"] = told.cpu_s.get(role, 0.0) / told.messages * 1e6
        servers = found[f"{key} broker_us"] + found[f"{key} storage_us"]
        found[f"{key} servers_us"] = servers
        found[f"{key} client_share"] = found[f"{key} client_us"] / (servers + found[f"{key} client_us"])
    return found


@case("perf.hops")
def hops(params: Params, folder: str) -> Measured:
    """Milliseconds of CPU per MB, hop by hop."""
    found: Measured = {}
    for key, told in _measure(params, folder):
        size = told.messages * _MB
        for role in ("client", "broker", "broker loop", "bookie", "bookie loop"):
            found[f"{key} {role}"] = told.cpu_s.get(role, 0.0) / size * 1e3
        for role in ("broker", "bookie"):
            found[f"{key} {role} threads"] = found[f"{key} {role}"] - found[f"{key} {role} loop"]
        found[f"{key} servers"] = found[f"{key} broker"] + found[f"{key} bookie"]
        found[f"{key} p99_ms"] = told.p99_ms
    return found
