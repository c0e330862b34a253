"""A real PostgreSQL for tests, as Debian installs it: a folder of its own, a port of its own."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

_BINARIES = ("/usr/lib/postgresql/*/bin", "/usr/local/pgsql/bin")
_START_TIMEOUT_S = 60.0


class PostgresqlServer:
    """Its user is `weir`, its database `postgres`; whoever comes from this machine is let in."""

    def __init__(self, command: list[str], user: str | None, folder: Path, port: int) -> None:
        self._command = command
        self._user = user
        self._folder = folder
        self.port = port
        self._begin()

    def _begin(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, user=self._user, cwd=self._folder, start_new_session=True
            )
        self._wait()

    def kill_and_restart(self) -> None:
        """SIGKILL for all of its processes at once, and it comes again with what it has stored."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._begin()

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=weir dbname=postgres"

    @classmethod
    def start(cls) -> "PostgresqlServer | None":
        """None if it is not installed here. It refuses to be root, and runs as `postgres` then."""
        programs = _programs()
        if programs is None:
            return None
        folder = Path(tempfile.mkdtemp(prefix="weir-pg-"))
        user = None
        if os.geteuid() == 0:
            try:
                user = pwd.getpwnam("postgres").pw_name
            except KeyError:
                return None
            shutil.chown(folder, user)
        data = folder / "data"
        subprocess.run(
            [str(programs / "initdb"), "-D", str(data), "-U", "weir", "-A", "trust", "-E", "UTF8", "--no-sync"],
            check=True,
            capture_output=True,
            user=user,
            cwd=folder,
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        options = ["-c", f"port={port}", "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
        options += [
            "-c",
            f"unix_socket_directories={folder}",
            "-c",
            "max_connections=40",
            "-c",
            "max_prepared_transactions=5",
        ]
        return cls([str(programs / "postgres"), "-D", str(data), *options], user, folder, port)

    def _wait(self) -> None:
        import psycopg

        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                psycopg.connect(self.dsn, connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    said = (self._folder / "log").read_text()
                    self.close()
                    raise AssertionError(f"PostgreSQL did not start: {said}") from None
                time.sleep(0.02)

    def close(self) -> None:
        """At once, with everything that it kept."""
        self._process.send_signal(3)  # SIGQUIT: its children end, too
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _programs() -> Path | None:
    found = [path for pattern in _BINARIES for path in sorted(Path("/").glob(pattern.lstrip("/")))]
    return next((path for path in reversed(found) if (path / "initdb").exists()), None)
