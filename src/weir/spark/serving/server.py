"""The server of `weir sql`: keeps Spark for its user, does what commands ask, and ends when unused for a while.

One thread takes what comes on a connection, another does it: so Ctrl-C is heard while a query runs. Spark starts
when a statement first needs it. Each connection has a session of its own in it, with its own views and settings.
"""

import logging
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from weir.model.errors import SparkSetupError, WeirError, WireError
from weir.spark.serving import protocol as m
from weir.spark.serving.protocol import fingerprint, weir_version
from weir.spark.serving.session import SqlSession, failed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_CREDENTIALS = struct.Struct("3i")
_LOOK_S = 0.5
#: How often a statement that was cancelled is told so, until it ends: it may just be planned.
_CANCEL_AGAIN_S = 0.3
#: More at the same time are refused.
_MAX_CLIENTS = 64


class SparkHolder:
    """The one Spark of this process, started when it is first asked for."""

    def __init__(self, start: Callable[[], "SparkSession"]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._spark: SparkSession | None = None

    @property
    def runs(self) -> bool:
        return self._spark is not None

    def session(self, emit: Callable[[m.Answer], None]) -> "SparkSession":
        """A session of its own. Whoever waits for Spark is told so."""
        waits = self._spark is None
        if waits:
            emit(m.Starting())
        with self._lock:
            if self._spark is None:
                self._spark = self._start()
            found = self._spark.newSession()
        if waits:
            emit(m.Starting(over=True))
        return found

    @property
    def broken(self) -> bool:
        """Whether its JVM has died."""
        if self._spark is None:
            return False
        process = getattr(self._spark.sparkContext._gateway, "proc", None)
        return process is not None and process.poll() is not None

    def cancel(self, tag: str) -> None:
        if self._spark is not None:
            with suppress(Exception):  # whatever Spark has to say, the next time it may work
                self._spark.sparkContext.cancelJobGroup(tag)

    def at_work(self, tag: str, folder: str) -> None:
        """This thread works for that client from here on; paths are from its folder."""
        if self._spark is None:
            return
        context = self._spark.sparkContext
        context.setJobGroup(tag, "weir sql", interruptOnCancel=True)
        if folder:
            jvm: Any = context._jvm
            files = jvm.org.apache.hadoop.fs.FileSystem.getLocal(context._jsc.hadoopConfiguration())
            files.setWorkingDirectory(jvm.org.apache.hadoop.fs.Path(folder))

    def stop(self) -> None:
        if self._spark is not None:
            with suppress(Exception):  # the process ends in any case
                self._spark.stop()


class Server:
    """Serves one socket until it is told to stop, has been unused for long, or is asked by newer code."""

    def __init__(
        self,
        path: Path,
        start_spark: Callable[[], "SparkSession"],
        *,
        idle_s: float,
        log_file: str = "",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self.spark = SparkHolder(start_spark)
        self._idle_s = idle_s
        self._log_file = log_file
        self._now = now
        self._since_ms = int(time.time() * 1000)
        self._fingerprint = fingerprint()
        self._clients: set[Client] = set()
        self._lock = threading.Lock()
        self._unused_since = now()
        self._leaving = threading.Event()
        self._stopping = threading.Event()
        self.statements = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Made under another name, so that whoever sees it can connect; nobody but the user may.
        aside = path.with_name(f"{path.name}.{os.getpid()}")
        aside.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            self._listener.bind(str(aside))
        finally:
            os.umask(before)
        self._listener.listen(_MAX_CLIENTS)
        self._listener.settimeout(_LOOK_S)
        self._inode = aside.stat().st_ino
        aside.replace(path)

    def serve(self) -> None:
        """Until the end; then everything is let go."""
        try:
            while not self._leaving.is_set():
                self._accept()
                if self._unused_for() > self._idle_s:
                    log.info("nobody asked for %.0f s", self._idle_s)
                    self.retire()
        finally:
            self.retire()
            while self._busy():
                if self._stopping.is_set():
                    self.stop()
                time.sleep(_LOOK_S)
            self.spark.stop()

    def retire(self) -> None:
        """Take nobody any more; who is here is served to the end."""
        self._leaving.set()
        with suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        self._listener.close()

    def interrupt(self) -> None:
        """End soon; for the handler of a signal, which may take no lock."""
        self._stopping.set()
        self._leaving.set()

    def stop(self) -> None:
        """End, whoever is here."""
        self._stopping.set()
        self.retire()
        with self._lock:
            clients = list(self._clients)
        for one in clients:
            one.hang_up()

    def status(self) -> m.Status:
        with self._lock:
            clients = len(self._clients)
        return m.Status(
            pid=os.getpid(),
            version=weir_version(),
            fingerprint=self._fingerprint,
            since_ms=self._since_ms,
            clients=clients,
            statements=self.statements,
            spark=self.spark.runs,
            idle_s=round(self._unused_for(), 1),
            ends_after_s=self._idle_s,
            log=self._log_file,
        )

    def see_spark(self, wrong: WeirError) -> None:
        """A Spark that does not start, or has died, is not tried again: the next command gets another server."""
        if isinstance(wrong, SparkSetupError) or self.spark.broken:
            log.warning("this server ends: %s", wrong)
            self.retire()

    def knows(self, other: str) -> bool:
        """Whether this is the code that asks."""
        return other == self._fingerprint

    def gone(self, client: "Client") -> None:
        with self._lock:
            self._clients.discard(client)
            self._unused_since = self._now()

    def unused(self) -> bool:
        """Whether nobody has a session here."""
        with self._lock:
            return not any(one.at_home for one in self._clients)

    def _busy(self) -> bool:
        with self._lock:
            return bool(self._clients)

    def _unused_for(self) -> float:
        with self._lock:
            return 0.0 if any(one.at_home for one in self._clients) else self._now() - self._unused_since

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # nobody came, or it is being closed
            return
        connection.settimeout(None)
        if peer_of(connection) != os.getuid() or len(self._clients) >= _MAX_CLIENTS:
            connection.close()
            return
        client = Client(self, connection)
        with self._lock:
            self._clients.add(client)
        threading.Thread(target=client.serve, daemon=True).start()


class Client:
    """One connection."""

    def __init__(self, server: Server, connection: socket.socket) -> None:
        self._server = server
        self._connection = connection
        self._sending = threading.Lock()
        self._work: SimpleQueue[m.Run | m.Names | None] = SimpleQueue()
        self._cancelled = threading.Event()
        self._working = threading.Event()
        self._gone = False
        #: Whether it has a session, rather than a question about the server.
        self.at_home = False
        self._tag = f"weir-sql-{id(self)}"
        self._wanted: m.Hello | None = None

    def serve(self) -> None:
        """Takes what comes, until the other side goes."""
        try:
            while True:
                request = m.receive_request(self._connection)
                if request is None:
                    return
                self._take(request)
        except (OSError, WireError) as failure:
            log.info("a client is gone: %s", failure)
        finally:
            self._gone = True
            self._cancelled.set()
            self._cancel()
            self._work.put(None)
            if not self.at_home:
                self._leave()

    def hang_up(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _take(self, request: m.Request) -> None:
        match request:
            case m.Hello():
                self._greet(request)
            case m.Run() | m.Names():
                if isinstance(request, m.Run):
                    self._cancelled.clear()
                self._work.put(request)
            case m.Cancel():
                self._cancelled.set()
                threading.Thread(target=self._cancel, daemon=True).start()
            case m.AskStatus():
                self._send(self._server.status())
            case m.Stop():
                self._send(m.Ended())
                if not request.when_unused or self._server.unused():
                    self._server.stop()

    def _greet(self, hello: m.Hello) -> None:
        if not self._server.knows(hello.fingerprint):
            log.info("newer code asks: this server ends when it is unused")
            self._server.retire()
            self._send(m.Ended())
            return
        self._wanted, self.at_home = hello, True
        self._send(m.Welcome(os.getpid()))
        threading.Thread(target=self._do_all, daemon=True).start()

    # --- the thread that works ----------------------------------------------------------------------------------

    def _do_all(self) -> None:
        session: SqlSession | None = None
        try:
            while (request := self._work.get()) is not None and not self._gone:
                self._working.set()
                try:
                    assert self._wanted is not None
                    if session is None:
                        session = SqlSession(self._wanted, self._spark(), self._send, stopped=self._stopped)
                    self._do(session, request)
                except WeirError as wrong:
                    self._server.see_spark(wrong)
                    live = session is not None and session.live
                    self._send(m.Ended(True, live) if self._cancelled.is_set() else failed(wrong))
                except OSError:  # nobody listens any more
                    return
                except Exception as bug:
                    log.exception("a statement failed in an unforeseen way")
                    self._send(m.Failed(f"{type(bug).__name__}: {bug}", f"see {self._server.status().log}"))
                finally:
                    self._working.clear()
        except OSError:
            log.info("a client went before its answer")
        finally:
            self._leave()

    def _do(self, session: SqlSession, request: m.Run | m.Names) -> None:
        if isinstance(request, m.Names):
            self._send(m.Named(session.names(request.table)))
            return
        self._server.statements += 1
        assert self._wanted is not None
        self._server.spark.at_work(self._tag, self._wanted.folder)
        session.run(request.texts)
        self._send(m.Ended(self._cancelled.is_set(), session.live))

    def _spark(self) -> "Callable[[], SparkSession]":
        found: list[SparkSession] = []

        def get() -> "SparkSession":
            if not found:
                found.append(self._server.spark.session(self._send))
                assert self._wanted is not None
                self._server.spark.at_work(self._tag, self._wanted.folder)
                # Spark finds sources and sinks by the session of the calling thread; this makes it be that one.
                found[0].createDataFrame([], "nothing int")
            return found[0]

        return get

    def _stopped(self) -> bool:
        return self._cancelled.is_set()

    def _cancel(self) -> None:
        """End what runs now: again and again, since it may be between two jobs."""
        while self._working.is_set() and self._cancelled.is_set():
            self._server.spark.cancel(self._tag)
            time.sleep(_CANCEL_AGAIN_S)

    def _send(self, answer: m.Answer) -> None:
        with self._sending:
            m.send(self._connection, answer)

    def _leave(self) -> None:
        self._connection.close()
        self._server.gone(self)


def peer_of(connection: socket.socket) -> int:
    """The user at the other end; this user where the system does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return os.getuid()
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])


def main(path: str, master: str, idle_s: float, warehouse: str, log_file: str) -> None:
    """The process: `python -m weir.spark.serving.server`."""
    from weir.spark.spark_session import session

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)

    def start() -> "SparkSession":
        try:
            return session("weir-sql", master=master, config={"spark.sql.warehouse.dir": warehouse})
        except Exception as failure:
            raise SparkSetupError(f"Spark does not start: {failure}", hint=f"see {log_file}") from failure

    server = Server(Path(path), start, idle_s=idle_s, log_file=log_file)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: server.interrupt())
    log.info("process %d serves %s", os.getpid(), path)
    server.serve()
    log.info("process %d ends", os.getpid())


if __name__ == "__main__":
    _path, _master, _idle, _warehouse, _log = sys.argv[1:]
    main(_path, _master, float(_idle), _warehouse, _log)
