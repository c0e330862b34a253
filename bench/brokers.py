"""A broker as a process of its own, whichever it is: started, measured from outside, stopped and started again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol

from bench import apache, kafka_peer

_TICKS_S = os.sysconf("SC_CLK_TCK")
_STOP_TIMEOUT_S = 60.0


class Broker(Protocol):
    """What a measurement needs of a broker."""

    url: str

    def start(self) -> None:
        """Begin to start; who wants to know when it serves asks it by the protocol."""

    @property
    def pid(self) -> int: ...

    def stop(self) -> None:
        """End it in order."""


class _Process:
    """A command, and the process that runs it."""

    def __init__(self, command: list[str], folder: Path, cwd: Path | None = None) -> None:
        self._command = command
        self._log = folder / "broker.log"
        self._cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=self._cwd)

    @property
    def pid(self) -> int:
        process = self._process
        if process is None or process.poll() is not None:
            raise SystemExit(f"the broker is not running; it said:\n{self._log.read_text()[-4000:]}")
        return process.pid

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class WeirBroker(_Process):
    """`weir up`, its cache as large as its peer's; what it acknowledges is synced to disk, as is its default."""

    def __init__(self, folder: Path) -> None:
        port, http = apache.free_ports(2)
        self.url = f"pulsar://127.0.0.1:{port}"
        chosen = [
            f"listeners.pulsar=127.0.0.1:{port}",
            f"listeners.http=127.0.0.1:{http}",
            "listeners.kafka=",
            "listeners.amqp=",
            "listeners.rocketmq=",
        ]
        chosen.append(f"storage.cache_bytes={apache.CACHE_MIB}MiB")
        settings = [part for value in chosen for part in ("--set", value)]
        super().__init__(
            [sys.executable, "-m", "weir.cli.main", "up", "--data", str(folder / "data"), *settings], folder
        )


class ApacheBroker(_Process):
    """Apache Pulsar standalone, its journal synced too."""

    def __init__(self, folder: Path) -> None:
        ports = apache.Ports(*apache.free_ports(3))
        self.url = f"pulsar://127.0.0.1:{ports.broker}"
        super().__init__(apache.command(folder, ports), folder, cwd=folder)


BROKERS: dict[str, type[WeirBroker] | type[ApacheBroker]] = {"weir": WeirBroker, "pulsar": ApacheBroker}


class WeirKafka(_Process):
    """`weir up` as Kafka's clients see it; `sync`: what it acknowledges is on the disk (its default)."""

    def __init__(self, folder: Path, *, sync: bool) -> None:
        kafka, pulsar, http = apache.free_ports(3)
        self.url = f"127.0.0.1:{kafka}"
        chosen = [
            f"listeners.kafka=127.0.0.1:{kafka}",
            f"listeners.pulsar=127.0.0.1:{pulsar}",
            f"listeners.http=127.0.0.1:{http}",
            "listeners.amqp=",
            "listeners.rocketmq=",
            *([] if sync else ["storage.sync=periodic:1000"]),
        ]
        settings = [part for value in chosen for part in ("--set", value)]
        super().__init__(
            [sys.executable, "-m", "weir.cli.main", "up", "--data", str(folder / "data"), *settings], folder
        )


class ApacheKafka(_Process):
    """Apache Kafka, one node; `sync`: every append is flushed."""

    def __init__(self, folder: Path, *, sync: bool) -> None:
        port, controller = apache.free_ports(2)
        self.url = f"127.0.0.1:{port}"
        super().__init__(kafka_peer.command(folder, port, controller, sync=sync), folder, cwd=folder)


class WeirAmqp(_Process):
    """`weir up` as RabbitMQ's clients see it."""

    def __init__(self, folder: Path) -> None:
        amqp, kafka, pulsar, http = apache.free_ports(4)
        self.amqp = f"127.0.0.1:{amqp}"
        self.url = f"amqp://guest:guest@{self.amqp}/%2F"
        chosen = [
            f"listeners.amqp={self.amqp}",
            "listeners.rocketmq=",
            f"listeners.kafka=127.0.0.1:{kafka}",
            f"listeners.pulsar=127.0.0.1:{pulsar}",
            f"listeners.http=127.0.0.1:{http}",
        ]
        settings = [part for value in chosen for part in ("--set", value)]
        super().__init__(
            [sys.executable, "-m", "weir.cli.main", "up", "--data", str(folder / "data"), *settings], folder
        )


KAFKAS: dict[str, type[WeirKafka] | type[ApacheKafka]] = {"weir": WeirKafka, "kafka": ApacheKafka}


def cpu_s(pid: int, thread: int | None = None) -> float:
    """CPU seconds that a process has used, or one of its threads."""
    where = f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat"
    fields = Path(where).read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_S


def rss_mb(pid: int) -> float:
    """Memory that a process holds."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def settled_rss_mb(pid: int, seconds: float) -> float:
    """The same after a while in which nothing was asked of it."""
    time.sleep(seconds)
    return rss_mb(pid)
