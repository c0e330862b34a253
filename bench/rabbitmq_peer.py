"""Debian's RabbitMQ as a peer: a node of its own name, with everything that it keeps in one folder.

Its package is installed by hand (`apt-get install rabbitmq-server`); nothing of its service is used or changed.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from bench.apache import free_ports

_BIN = Path("/usr/lib/rabbitmq/bin")
_SERVER = _BIN / "rabbitmq-server"
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0
USER = PASSWORD = "guest"


def missing() -> str:
    """Why it cannot run here, or nothing."""
    return "" if _SERVER.exists() and shutil.which("erl") else "rabbitmq-server is not installed"


def version() -> str:
    """As Debian's package says it, without Debian's part; "" where there is none."""
    if missing():
        return ""
    said = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"], capture_output=True, text=True, check=False
    )
    return said.stdout.partition("-")[0]


TITLE = f"RabbitMQ {version()}".strip()


class RabbitMq:
    """One node, started by hand. `amqp` is `host:port`, `management` a URL."""

    def __init__(
        self,
        folder: Path,
        *,
        plugins: tuple[str, ...] = ("rabbitmq_management",),
        certificates: Path | None = None,
    ) -> None:
        """`certificates`: where `localhost.pem` and its key are; then it serves TLS, too, and knows clients by the
        common names of certificates that this one signed."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        port, http, distribution, epmd, secure = free_ports(5)
        self.amqps = f"127.0.0.1:{secure}"
        self.amqp = f"127.0.0.1:{port}"
        self.url = f"amqp://{USER}:{PASSWORD}@{self.amqp}/%2F"
        self.management = f"http://127.0.0.1:{http}"
        self._plugins = plugins
        self._log = folder / "rabbitmq.log"
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = {self.amqp}\nmanagement.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {http}\n"
            if "rabbitmq_management" in plugins
            else f"listeners.tcp.1 = {self.amqp}\n"
        )
        if certificates is not None:
            with (folder / "rabbitmq.conf").open("a") as settings:
                settings.write(
                    f"listeners.ssl.1 = {self.amqps}\nssl_options.cacertfile = {certificates}/localhost.pem\n"
                    f"ssl_options.certfile = {certificates}/localhost.pem\n"
                    f"ssl_options.keyfile = {certificates}/localhost-key.pem\n"
                    "ssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = false\n"
                    "auth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = AMQPLAIN\nauth_mechanisms.3 = EXTERNAL\n"
                    "ssl_cert_login_from = common_name\n"
                )
        self._environment = os.environ | {
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"weir{port}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }

    def start(self) -> None:
        """Begin to start; `wait` until it serves."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(_SERVER)], stdout=log, stderr=log, env=self._environment, start_new_session=True
            )

    def wait(self) -> "RabbitMq":
        """Until it serves, and its process id is known: it writes the file at its own pace."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not (self._serves() and self._pid() is not None):
            if time.monotonic() > deadline or (self._process is not None and self._process.poll() is not None):
                raise SystemExit(f"RabbitMQ did not start:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.1)
        return self

    def _serves(self) -> bool:
        host, _, port = self.amqp.partition(":")
        try:
            with socket.create_connection((host, int(port)), 5) as opened:
                opened.sendall(b"AMQP\0\0\x09\1")
                if not opened.recv(8):
                    return False
            if "rabbitmq_management" in self._plugins:
                urllib.request.urlopen(f"{self.management}/", timeout=5).close()
        except (OSError, urllib.error.URLError):
            return False
        return True

    @property
    def pid(self) -> int:
        """Of the virtual machine, which does all of the work."""
        pid = self._pid()
        if pid is None:
            raise SystemExit("RabbitMQ has not written its process id yet: wait() first")
        return pid

    def _pid(self) -> int | None:
        """As its file says it; None before the file is there and filled."""
        try:
            said = (self._folder / "pid").read_text()
        except OSError:
            return None
        return int(said) if said.strip().isdigit() else None

    def ctl(self, *arguments: str) -> str:
        """`rabbitmqctl`."""
        command = [str(_BIN / "rabbitmqctl"), "-q", "-n", self._environment["RABBITMQ_NODENAME"], *arguments]
        return subprocess.run(command, env=self._environment, check=True, capture_output=True, text=True).stdout

    def stop(self) -> None:
        """End it, and the port mapper that it started."""
        process = self._process
        if process is None:
            return
        self._process = None
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for _ in range(50):  # it stays as long as it knows of the node
            mapper = ["epmd", "-port", self._environment["ERL_EPMD_PORT"], "-kill"]
            if subprocess.run(mapper, capture_output=True, check=False).returncode:
                break
            time.sleep(0.1)
