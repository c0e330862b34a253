"""Eight writers that commit out of order, while PostgreSQL and the runner are killed: every row once."""

import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from weir.testing.processes.postgresql import PostgresqlServer

from .conftest import Weir
from .runner_kit import Cli, RunnerProcess, until

pytestmark = [
    pytest.mark.process,
    pytest.mark.soak,
    pytest.mark.xdist_group("connect"),
    pytest.mark.timeout(1800),
]

_WRITERS, _TRANSACTIONS = 8, 40


@pytest.fixture
def own() -> Iterator[PostgresqlServer]:
    """One that may be killed."""
    server = PostgresqlServer.start()
    if server is None:
        pytest.skip("there is no PostgreSQL here")
    yield server
    server.close()


class Writer(threading.Thread):
    """Transactions of several rows that take their time; what was acknowledged is known, and what may be there."""

    def __init__(self, dsn: str, table: str, number: int) -> None:
        super().__init__()
        self._dsn, self._table, self._number = dsn, table, number
        self.stored: set[str] = set()
        self.maybe: set[str] = set()

    def run(self) -> None:
        pace = random.Random(self._number)
        done = 0
        while done < _TRANSACTIONS:
            mine: set[str] = set()
            try:
                with psycopg.connect(self._dsn) as connection:
                    while done < _TRANSACTIONS:
                        mine = {f"{self._number}-{done}-{row}" for row in range(pace.randint(1, 4))}
                        self._write(connection, sorted(mine), pace)
                        self.stored |= mine
                        done += 1
            except psycopg.Error:  # it was killed: nobody knows whether the last one was stored
                self.maybe |= mine
                done += 1

    def _write(self, connection: "psycopg.Connection[object]", names: list[str], pace: random.Random) -> None:
        with connection.transaction():
            for name in names:
                connection.execute(f'INSERT INTO "{self._table}" (name) VALUES (%s)'.encode(), (name,))
                connection.execute("SELECT pg_sleep(%s)", (pace.random() / 20,))


@pytest.mark.parametrize("column", ["id", "at"])
def test_every_row_of_eight_writers_comes_and_goes_once_though_all_are_killed(
    weir: Weir,
    weir_connect: Cli,
    runner: RunnerProcess,
    own: PostgresqlServer,
    tmp_path: Path,
    unique: str,
    column: str,
) -> None:
    with psycopg.connect(own.dsn, autocommit=True) as database:
        database.execute(
            f'CREATE TABLE "{unique}" (id bigserial PRIMARY KEY, name text, at timestamptz DEFAULT now())'
        )
        # No key: a row that came twice would be there twice.
        database.execute(f'CREATE TABLE "{unique}-copy" (id bigint, name text, at timestamptz)')
    for side, more in (("source", f'column = "{column}"\npoll = "20ms"'), ("sink", 'mode = "insert"')):
        table = unique if side == "source" else f"{unique}-copy"
        file = tmp_path / f"{unique}-{side}.toml"
        file.write_text(
            f'topic = "{unique}"\n[{side}]\ntype = "postgresql"\ndsn = "{own.dsn}"\ntable = "{table}"\n'
            f"batch = 7\n{more}\n"
        )
        weir_connect("add", str(file))
    runner.start()
    writers = [Writer(own.dsn, unique, number) for number in range(_WRITERS)]
    for writer in writers:
        writer.start()

    def names(table: str) -> list[str]:
        with psycopg.connect(own.dsn) as database:
            return [row[0] for row in database.execute(f'SELECT name FROM "{table}"'.encode())]

    for turn, part in enumerate((0.1, 0.3, 0.5), 1):
        wanted = part * _WRITERS * _TRANSACTIONS
        until(lambda wanted=wanted: len(names(f"{unique}-copy")) > wanted)
        if turn % 2:
            runner.end(signal.SIGKILL)
            runner.start()
        else:
            own.kill_and_restart()
    for writer in writers:
        writer.join()
    stored = names(unique)
    assert set().union(*(writer.stored for writer in writers)) <= set(stored)
    assert set(stored) <= set().union(*(writer.stored | writer.maybe for writer in writers))
    until(lambda: len(names(f"{unique}-copy")) >= len(stored))
    assert Counter(names(f"{unique}-copy")) == Counter(stored)
    assert Counter(row["name"] for row in weir.values(unique)) == Counter(stored)
