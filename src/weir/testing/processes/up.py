"""`weir up` as a real process of its own, for tests that stop, kill and restart it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from socket import socket

from weir.testing.ports import reserved

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0


class UpProcess:
    """One data folder and the process that serves it. Ports are chosen at the first start, and kept."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.data = folder / "data"
        self.ready_file = folder / "ready.json"
        self.log_file = folder / "weir.log"
        self._settings = settings
        #: Options of the next start.
        self.options: tuple[str, ...] = ()
        #: Of its environment, from the next start on.
        self.variables: dict[str, str] = {}
        self._ports: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self.addresses: dict[str, str] = {}
        #: Its ports, while it does not run.
        self._reserved: list[socket] = []

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def pulsar_url(self) -> str:
        return f"pulsar://{self.addresses['pulsar']}"

    @property
    def kafka(self) -> str:
        """What Kafka's clients call bootstrap.servers."""
        return self.addresses["kafka"]

    @property
    def amqp(self) -> str:
        """What RabbitMQ's clients connect to, as host:port."""
        return self.addresses["amqp"]

    @property
    def rocketmq(self) -> str:
        """What RocketMQ's clients connect to, as host:port."""
        return self.addresses["rocketmq"]

    @property
    def http_url(self) -> str:
        return f"http://{self.addresses['http']}"

    @property
    def log(self) -> str:
        """What it has said so far, on both outputs."""
        return self.log_file.read_text() if self.log_file.exists() else ""

    def command(self) -> list[str]:
        """How it is started."""
        listeners = dict.fromkeys(("pulsar", "kafka", "amqp", "rocketmq", "http"), "127.0.0.1:0") | self._ports
        settings = [f"listeners.{name}={address}" for name, address in listeners.items()]
        # A test machine may have little disk left; running low is tested where it is the subject.
        settings += ["storage.low_water_bytes=0", "storage.high_water_bytes=0", *self._settings]
        assignments = [part for setting in settings for part in ("--set", setting)]
        start = [sys.executable, "-m", "weir.cli.main", "up", "--data", str(self.data)]
        return [*start, "--ready-file", str(self.ready_file), *self.options, *assignments]

    def start(self) -> "UpProcess":
        """Start it, and wait until it is ready."""
        self.begin()
        self.wait_ready()
        return self

    def begin(self) -> None:
        """Start it, and do not wait."""
        self.ready_file.unlink(missing_ok=True)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, env=environment() | self.variables
            )

    def refused(self) -> str:
        """Start it, and wait until it has ended by itself; what it said then."""
        said = len(self.log)
        self.begin()
        code = self._running().wait(_START_TIMEOUT_S)
        self._process = None
        assert code != 0, f"weir up ended in order:\n{self.log}"
        return self.log[said:]

    def wait_ended(self) -> None:
        """Wait until it has ended by itself, however that was."""
        self._running().wait(_START_TIMEOUT_S)
        self._process = None

    def wait_ready(self) -> None:
        process = self._running()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self.ready_file.exists():
            if process.poll() is not None:
                raise AssertionError(f"weir up ended with {process.returncode}:\n{self.log}")
            if time.monotonic() > deadline:
                raise AssertionError(f"weir up is not ready after {_START_TIMEOUT_S:g} s:\n{self.log}")
            time.sleep(0.005)
        self.addresses = json.loads(self.ready_file.read_text())
        self._ports = dict(self.addresses)
        self._release()

    def wait_said(self, words: str) -> None:
        """Until its log has them."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while words not in self.log:
            assert self._running().poll() is None, f"weir up has ended:\n{self.log}"
            assert time.monotonic() < deadline, f"it does not say {words!r}:\n{self.log}"
            time.sleep(0.005)

    def stop(self) -> int:
        """End it in order; its exit code."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        code = process.wait(_STOP_TIMEOUT_S)
        self._process = None
        self._reserved += reserved(self._ports.values())
        return code

    def kill(self) -> None:
        """End it as a crash would."""
        process = self._running()
        process.kill()
        process.wait()
        self._process = None
        self._reserved += reserved(self._ports.values())

    def close(self) -> None:
        """Whatever it does: not any more."""
        if self._process is not None:
            self.kill()
        self._release()

    def _release(self) -> None:
        while self._reserved:
            self._reserved.pop().close()

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "weir up was not started"
        return self._process


def environment() -> dict[str, str]:
    """Without settings of whoever runs the tests; compiled modules are kept, as an installed Weir has them."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    kept["WEIR_SQL_SERVER"] = "off"  # which would outlive the test
    return kept
