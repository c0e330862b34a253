"""`weir connect` as its users type it, and its runner: restarts, failures told, rows counted over kills."""

import json
import signal
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from weir.client.connectors import all_connectors
from weir.client.kafka.cluster import Cluster
from weir.connect.connectors.files import FilesSource
from weir.model.topics import TopicName
from weir.testing.processes.postgresql import PostgresqlServer

from .conftest import Weir
from .runner_kit import Cli, RunnerProcess, RunnerThread, until

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("connect")]


def test_a_connector_is_added_run_paused_stopped_resumed_and_removed(
    weir: Weir,
    weir_connect: Cli,
    running: RunnerThread,
    folder: Path,
    tmp_path: Path,
    unique: str,
) -> None:
    weir.create(unique)
    (folder / "a.txt").write_text("one\n")
    file = tmp_path / f"{unique}.toml"
    said = f'topic = "{unique}"\n[source]\ntype = "files"\nformat = "text"\npoll = "50ms"\nsettle = "0ms"\n'
    file.write_text(
        f'{said}path = "{folder}"\naccess_key = {{ env = "SHOP_KEY" }}\nsecret_key = {{ env = "SHOP_PASSWORD" }}\n'
    )
    assert "is valid" in weir_connect("add", str(file), "--check")
    assert "it starts with weir connect run" in weir_connect("add", str(file))
    assert "is defined" in weir_connect("add", str(file)), "asking twice is fine"
    (listed,) = json.loads(weir_connect("list", "--json"))
    assert (listed["connector"], listed["type"]) == (unique, "files source")
    running.start()
    until(lambda: weir_connect.status(unique)["state"] == "running")
    until(lambda: len(weir.messages(unique)) == 1)
    shown = weir_connect("describe", unique)
    assert "SHOP_PASSWORD" in shown
    assert "hunter2" not in shown
    for word, state in (("pause", "paused"), ("stop", "stopped")):
        weir_connect(word, unique)
        until(lambda state=state: weir_connect.status(unique)["state"] == state)
        (folder / f"{word}.txt").write_text("more\n")
    assert len(weir.messages(unique)) == 1
    weir_connect("resume", unique)
    until(lambda: len(weir.messages(unique)) == 3)
    weir_connect("remove", unique)
    assert json.loads(weir_connect("list", "--json")) == []
    assert weir_connect.run("status", unique).exit_code == 1
    # What it left goes, what it carried stays.
    with Cluster(weir.place.kafka) as cluster:
        until(lambda: f"connect-{unique}-positions" not in cluster.topics())
        assert unique in cluster.topics()


def test_a_connector_that_fails_says_why_and_when_it_is_tried_again_and_goes_on(
    weir: Weir,
    weir_connect: Cli,
    running: RunnerThread,
    postgresql: PostgresqlServer,
    database: "psycopg.Connection[Any]",
    tmp_path: Path,
    unique: str,
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        f'name = "{unique}"\ntopic = "{unique}"\n[source]\ntype = "postgresql"\ndsn = "{postgresql.dsn}"\n'
        f'password = {{ env = "SHOP_PASSWORD" }}\ntable = "{unique}"\ncolumn = "id"\npoll = "50ms"\n'
    )
    weir_connect("add", str(file))
    running.start()
    told = until(lambda: found if (found := weir_connect.status(unique))["state"] == "failed" else None)
    assert "does not exist" in told["error"]
    assert told["failures"] >= 1
    assert told["next try"] >= told["last failure"]
    database.execute(f'CREATE TABLE "{unique}" AS SELECT 1 AS id')
    until(lambda: (found := weir_connect.status(unique))["state"] == "running" and not found["error"])
    until(lambda: len(weir.messages(unique)) == 1)


def test_every_row_is_there_once_though_the_runner_is_killed_again_and_again(
    weir: Weir,
    weir_connect: Cli,
    runner: RunnerProcess,
    postgresql: PostgresqlServer,
    database: "psycopg.Connection[Any]",
    tmp_path: Path,
    unique: str,
) -> None:
    rows = 400
    database.execute(f'CREATE TABLE "{unique}" (id int PRIMARY KEY)')
    database.execute(f'INSERT INTO "{unique}" SELECT generate_series(1, {rows})')
    database.execute(
        f'CREATE TABLE "{unique}-copy" (id int)'
    )  # no key: a row that came twice would be there twice
    for side, more in (("source", 'column = "id"\npoll = "5ms"'), ("sink", 'mode = "insert"')):
        table = unique if side == "source" else f"{unique}-copy"
        file = tmp_path / f"{unique}-{side}.toml"
        file.write_text(
            f'topic = "{unique}"\n[{side}]\ntype = "postgresql"\ndsn = "{postgresql.dsn}"\ntable = "{table}"\n'
            f"batch = 5\n{more}\n"
        )
        weir_connect("add", str(file))

    def copied() -> int:
        found = database.execute(f'SELECT count(*) FROM "{unique}-copy"').fetchone()
        return int(found[0]) if found else 0

    for part in (1, 2):
        runner.start()
        until(lambda part=part: copied() >= part * rows // 6)
        runner.end(signal.SIGKILL)
    runner.start()
    until(lambda: copied() >= rows)
    ids = [row[0] for row in database.execute(f'SELECT id FROM "{unique}-copy" ORDER BY id')]
    assert ids == list(range(1, rows + 1))
    assert sorted(row["id"] for row in weir.values(unique)) == list(range(1, rows + 1))


def test_names_that_are_not_there_and_wrong_files_are_refused(
    weir_connect: Cli, tmp_path: Path, unique: str
) -> None:
    refused = weir_connect.run("pause", unique)
    assert refused.exit_code == 1
    assert "there is no connector" in str(refused.exception)
    assert weir_connect.run("remove", unique, "--if-exists").exit_code == 0
    file = tmp_path / "wrong.toml"
    file.write_text("topic = 'x'\n")
    assert "needs one of [source] and [sink]" in str(weir_connect.run("add", str(file)).exception)
    assert "wait_for" in weir_connect("types", "postgresql")


def test_another_definition_of_the_same_name_is_refused(
    weir: Weir, weir_connect: Cli, tmp_path: Path, unique: str
) -> None:
    file = tmp_path / f"{unique}.toml"
    for path, code in (("/tmp/a", 0), ("/tmp/b", 1)):
        file.write_text(f'topic = "{unique}"\n[sink]\ntype = "files"\npath = "{path}"\n')
        assert weir_connect.run("add", str(file)).exit_code == code
    (one,) = all_connectors(weir.place.access)
    assert one.connector.name == TopicName.parse(unique)
    assert json.loads(one.connector.config)["sink"]["path"] == "/tmp/a"


def test_a_sink_that_can_read_and_not_write_counts_failures_and_no_records(
    weir: Weir, weir_connect: Cli, running: RunnerThread, tmp_path: Path, unique: str
) -> None:
    weir.create(unique)
    weir.fill(unique, [(None, b'{"n": 1}')])
    (tmp_path / "file").write_text("")
    file = tmp_path / f"{unique}.toml"
    file.write_text(f'topic = "{unique}"\n[sink]\ntype = "files"\npath = "{tmp_path}/file/x"\nmax_age = "1ms"\n')
    weir_connect("add", str(file))
    running.start()
    told = until(lambda: found if (found := weir_connect.status(unique)).get("failures", 0) > 1 else None)
    assert told["records"] == 0
    assert "cannot be written" in told["error"]


def test_a_connector_that_takes_its_time_to_end_keeps_no_other_from_it(
    weir: Weir,
    weir_connect: Cli,
    running: RunnerThread,
    tmp_path: Path,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered, released = threading.Event(), threading.Event()

    def step(self: FilesSource) -> int:
        if self.name.endswith("slow"):
            entered.set()
            released.wait()
        return 0

    monkeypatch.setattr(FilesSource, "step", step)
    for name in (f"{unique}-a-slow", f"{unique}-b"):
        file = tmp_path / f"{name}.toml"
        file.write_text(f'topic = "{name}"\n[source]\ntype = "files"\npath = "{tmp_path}"\n')
        weir_connect("add", str(file))
    running.start()
    assert entered.wait(60)
    weir_connect("stop", f"{unique}-a-slow", f"{unique}-b")
    try:
        until(lambda: weir_connect.status(f"{unique}-b")["state"] == "stopped")
        assert weir_connect.status(f"{unique}-a-slow")["state"] != "stopped"
    finally:
        released.set()
    until(lambda: weir_connect.status(f"{unique}-a-slow")["state"] == "stopped")
