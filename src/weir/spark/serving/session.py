"""One user's session of SQL: texts in, messages out; the same in the command itself and in its server.

Starts a runner of streams in the background, where none runs.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Raw, json

from weir.client import streams as rest
from weir.client.admin import Access
from weir.model.errors import ConfigError, SparkJvmError, SparkSetupError, WeirError
from weir.spark.serving import protocol as m
from weir.spark.serving.protocol import as_object, names_of, shown, trace_of
from weir.spark.sql.console import Console
from weir.spark.sql.parsing import Placed, parse_script
from weir.spark.sql.results import Done, Rows
from weir.spark.sql.statements import SelectStream, Statement, Watch
from weir.spark.tables.names import WeirCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: How long a runner that nobody watches waits for a broker that is away.
_PATIENCE_S = 300


def checkpoint_folder(access: Access, given: str | None) -> Path:
    """Where the streams keep what they need to go on: as given, or beside the broker's data if that is here."""
    if given is not None:
        return Path(given).absolute()
    data = Path(rest.listeners(access).data)
    if not data.is_dir():
        raise ConfigError("the broker's data is not on this machine", hint="give --checkpoints FOLDER")
    return data / "sql"


@dataclass(slots=True)
class RunnerStarter:
    """For one user at one Weir."""

    url: str
    token: str | None
    ca: str | None
    kafka: str | None
    access: Access
    checkpoints: str | None
    process: "subprocess.Popen[bytes] | None" = None
    log: Path | None = None

    def see(self) -> bool:
        """See to it that there is one; False if there is none, and this user may not run it."""
        if self.process is not None and self.process.poll() is None:
            return True
        found = rest.runner(self.access)
        if found.where is None and self.process is not None and self.process.returncode != SparkJvmError.exit_code:
            raise SparkSetupError("the runner of the streams has ended", hint=f"see {self.log} for why")
        if found.where is None and found.allowed:
            self.process = self._start()
        return found.where is not None or found.allowed

    def _words(self) -> Iterator[tuple[str, str | None]]:
        yield from (("--kafka", self.kafka), ("--ca", self.ca))
        yield from (("--cert", self.access.certificate), ("--cert-key", self.access.key))

    def _start(self) -> "subprocess.Popen[bytes]":
        folder = checkpoint_folder(self.access, self.checkpoints)
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "weir.cli.main", "-v", "streams", "run", "--url", self.url]
        command += ["--checkpoints", str(folder), "--patience", str(_PATIENCE_S), "--leave-when-idle"]
        for name, value in self._words():
            command += [name, value] if value is not None else []
        # The token goes by the environment: a command line can be seen by everybody on the machine.
        variables = {name: value for name, value in os.environ.items() if name != "WEIR_TOKEN"}
        variables |= {} if self.token is None else {"WEIR_TOKEN": self.token}
        self.log = folder / "runner.log"
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=variables
            )


Emit = Callable[[m.Answer], None]
_JSON = json.Encoder()


class SqlSession:
    """What one command or prompt does. `emit` is given the answers, in order."""

    def __init__(
        self,
        wanted: m.Hello,
        spark: Callable[[], "SparkSession"],
        emit: Emit,
        *,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """`stopped`: whether what runs now is to end; asked now and then."""
        self._wanted = wanted
        self._emit = emit
        self._stopped = stopped
        #: Whether what was done last goes on until it is stopped.
        self.live = False
        place = place_of(wanted)
        starter = RunnerStarter(
            wanted.url, wanted.token, wanted.ca, wanted.kafka, place.access, wanted.checkpoints
        )
        self._console = Console(
            spark,
            place,
            limit=wanted.limit,
            start=wanted.start,
            see_runner=(lambda: False) if wanted.no_runner else starter.see,
        )

    def run(self, texts: Sequence[str]) -> None:
        """All statements of all texts: they are all looked at before the first is done, and if one cannot be done,
        none is. Then the first that fails ends it."""
        placed = [one for text in texts for one in parse_script(text)]
        several = len(placed) > 1
        if several:
            self._console.check([(_named(one), one.statement) for one in placed])
        for one in placed:
            if self._stopped():
                return
            try:
                self._do(one.statement)
            except WeirError as wrong:
                if several:
                    wrong.what = f"{_named(one)}: {wrong.what}"
                raise

    def names(self, table: Sequence[str] | None) -> list[str]:
        """For completion; nothing if that cannot be said now."""
        with suppress(WeirError):
            if table is None:
                return self._console.table_names()
            return [one.name for one in self._console.columns_of(tuple(table))]
        return []

    def _do(self, statement: Statement) -> None:
        began = time.monotonic()
        self.live = isinstance(statement, SelectStream | Watch)
        if isinstance(statement, SelectStream | Watch):
            self._go_on(statement)
            return
        result = self._console.do(statement)
        took_ms = int(1000 * (time.monotonic() - began))
        if isinstance(result, Done):
            self._emit(m.Word(result.what, dict(result.fields), took_ms))
        else:
            self._result(result, took_ms)

    def _result(self, result: Rows, took_ms: int, *, watched: bool = False) -> None:
        self._emit(m.Head(list(result.columns), watched=watched))
        for at in range(0, len(result.rows), m.ROWS_PER_PART):
            self._part(result.columns, result.rows[at : at + m.ROWS_PER_PART])
        self._emit(m.Tail(len(result.rows), took_ms, result.more))

    def _part(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        if self._wanted.as_json:
            names = names_of(columns)
            self._emit(m.Part([Raw(as_object(names, row)) for row in rows]))
        else:
            self._emit(m.Part([Raw(_JSON.encode([shown(cell) for cell in row])) for row in rows]))

    def _go_on(self, statement: SelectStream | Watch) -> None:
        """What goes on until it is stopped."""
        if isinstance(statement, Watch):
            with closing(self._console.watch(statement, stopped=self._stopped)) as tables:
                for found in tables:
                    self._result(found, 0, watched=True)
            return
        count, began = 0, time.monotonic()
        with closing(self._console.live(statement, stopped=self._stopped)) as rows:
            for at, some in enumerate(rows):
                if not at:
                    self._emit(m.Head(list(some.columns), live=True))
                self._part(some.columns, some.rows)
                count += len(some.rows)
        self._emit(m.Tail(count, int(1000 * (time.monotonic() - began))))


def place_of(wanted: m.Hello) -> WeirCluster:
    """The Weir that a session is about."""
    access = Access(wanted.url, wanted.token, wanted.ca, certificate=wanted.certificate, key=wanted.key)
    return WeirCluster.find(access, wanted.kafka)


def failed(wrong: WeirError) -> m.Failed:
    return m.Failed(wrong.what, wrong.hint, trace_of(wrong), isinstance(wrong, ConfigError))


def _named(one: Placed) -> str:
    return f"statement {one.number}, line {one.line}"
