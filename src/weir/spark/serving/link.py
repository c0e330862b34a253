"""A command's end of the talk: finds its user's server, or starts one, and passes on what it says."""

import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from weir.model.errors import ConfigError, SparkSetupError, SqlError, WireError
from weir.spark.serving import protocol as m
from weir.spark.serving.protocol import runtime_folder, socket_path

#: A server listens before it starts Spark, but loads much before it listens.
_START_PATIENCE_S = 120.0
_LOOK_S = 0.02
_TRIES = 4
_MAX_LOG_BYTES = 10 * 1024 * 1024
DEFAULT_IDLE_S = 600.0


class ServerLink:
    """A session at the server. One that ended meanwhile is followed by another, without its views."""

    def __init__(self, again: Callable[[], socket.socket]) -> None:
        self._again = again
        self._connection = again()
        self._lost = False

    def run(self, texts: list[str], take: Callable[[m.Answer], None]) -> bool:
        """Have it do these texts; what it says goes to `take`. False if it was interrupted in something that only
        ends so; KeyboardInterrupt if in something else."""
        if self._lost:
            self._connection, self._lost = self._again(), False
        self._send(m.Run(texts))
        interrupted = False
        while True:
            try:
                answer = m.receive_answer(self._connection)
                if answer is None:
                    raise self._ended()
                if isinstance(answer, m.Ended):
                    if answer.cancelled and not answer.live:
                        raise KeyboardInterrupt
                    return not answer.cancelled
                if isinstance(answer, m.Failed):
                    raise error_of(answer)
                if not interrupted:
                    take(answer)
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                self._send(m.Cancel())

    def names(self, table: tuple[str, ...] | None = None) -> list[str]:
        """For completion."""
        if self._lost:
            return []
        try:
            self._send(m.Names(None if table is None else list(table)))
            answer = m.receive_answer(self._connection)
        except (SparkSetupError, WireError):
            return []
        return answer.names if isinstance(answer, m.Named) else []

    def close(self) -> None:
        self._connection.close()

    def _send(self, request: m.Request) -> None:
        try:
            m.send(self._connection, request)
        except OSError:
            raise self._ended() from None

    def _ended(self) -> SparkSetupError:
        self._lost = True
        self._connection.close()
        return SparkSetupError("the server of weir sql has ended", hint="ask again: another one starts")


def error_of(answer: m.Failed) -> SqlError | ConfigError:
    wrong = (ConfigError if answer.misused else SqlError)(answer.what, hint=answer.hint)
    if answer.trace:
        wrong.__cause__ = m.BelowError(answer.trace)
    return wrong


def open_link(
    hello: m.Hello, master: str, state: Path, *, idle_s: float, starting: Callable[[], None] = lambda: None
) -> ServerLink:
    """SparkSetupError if there is no server, and none can be started. `state`: for its log and Spark's files;
    `starting` is called when one has to be started."""
    return ServerLink(lambda: _connected(hello, master, state, idle_s, starting))


def _connected(
    hello: m.Hello, master: str, state: Path, idle_s: float, starting: Callable[[], None]
) -> socket.socket:
    path = socket_path(master)
    for _ in range(_TRIES):
        connection = connect(path)
        if connection is None:
            starting()
            _start(path, master, state, idle_s)
            continue
        try:
            m.send(connection, hello)
            answer = m.receive_answer(connection)
        except (OSError, WireError):
            answer = None
        if isinstance(answer, m.Welcome):
            return connection
        # It has other code, or is about to end: it has left its name, or is made to.
        connection.close()
        if answer is None:
            with _locked(path), suppress(OSError):
                path.unlink()
    raise SparkSetupError(
        "the server of weir sql does not answer", hint=f"see {log_of(state)}, or use --no-server"
    )


def connect(path: Path) -> socket.socket | None:
    """None if nobody listens there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    return connection


def ask(path: Path, request: m.Request) -> m.Answer | None:
    """One question about a server; None if none is there."""
    connection = connect(path)
    if connection is None:
        return None
    try:
        m.send(connection, request)
        return m.receive_answer(connection)
    except (OSError, WireError):
        return None
    finally:
        connection.close()


def servers() -> list[Path]:
    """The sockets of all servers of this user."""
    return sorted(one for one in runtime_folder().glob("sql-????????????") if one.is_socket())


def log_of(state: Path) -> Path:
    return state / "sql-server.log"


def _start(path: Path, master: str, state: Path, idle_s: float) -> None:
    """One of several commands at the same time starts it, and the others wait for that."""
    with _locked(path):
        found = connect(path)
        if found is not None:
            found.close()
            return
        path.unlink(missing_ok=True)
        log = log_of(state)
        if log.exists() and log.stat().st_size > _MAX_LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
        command = [sys.executable, "-m", "weir.spark.serving.server", str(path), master, str(idle_s)]
        # Who asks says so with each session: what the first one has in its environment is not the others'.
        variables = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
        with log.open("ab") as file:
            process = subprocess.Popen(
                [*command, str(state / "warehouse"), str(log)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                cwd=state,
                env=variables,
            )
        deadline = time.monotonic() + _START_PATIENCE_S
        while (found := connect(path)) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SparkSetupError("the server of weir sql does not start", hint=f"see {log}")
            time.sleep(_LOOK_S)
        found.close()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Among all commands of this user."""
    with path.with_name(f"{path.name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
