"""Connectors that are updated while they run go on from their positions: each row is there once."""

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from weir.client.connectors import all_connectors, update_connector
from weir.model.errors import ConnectorNotFoundError
from weir.model.topics import TopicName
from weir.testing.processes.postgresql import PostgresqlServer

from .conftest import Weir
from .runner_kit import Cli, RunnerThread, until

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("connect")]


def test_a_source_and_a_sink_are_updated_again_and_again_and_each_record_is_there_once(
    weir: Weir, weir_connect: Cli, running: RunnerThread, folder: Path, tmp_path: Path, unique: str
) -> None:
    records, out = 300, tmp_path / "out"
    (folder / "a.json").write_text("".join(f'{{"n": {number}}}\n' for number in range(records)))

    def definitions(batch: int, pattern: str = "*.json") -> list[str]:
        source = (
            f'[source]\ntype = "files"\npath = "{folder}"\npattern = "{pattern}"\nsettle = "0ms"\n'
            f'poll = "5ms"\nbatch = {batch}\n'
        )
        sink = f'[sink]\ntype = "files"\npath = "{out}"\nmax_age = "20ms"\nmax_records = {batch}\n'
        found = []
        for side, text in (("source", source), ("sink", sink)):
            file = tmp_path / f"{unique}-{side}.toml"
            file.write_text(f'topic = "{unique}"\n{text}')
            found.append(str(file))
        return found

    def written() -> list[int]:
        return [json.loads(line)["n"] for file in sorted(out.rglob("*.jsonl")) for line in file.open()]

    weir.create(unique)
    for file in definitions(1):
        weir_connect("add", file)
    ids = {one.connector.id for one in all_connectors(weir.place.access)}
    running.start()
    for batch in range(2, 8):
        before = len(written())
        until(lambda before=before: len(written()) > before or len(written()) == records)
        for file in definitions(batch):
            assert "is updated; it keeps its positions" in weir_connect("update", file)
    until(lambda: len(written()) >= records)
    (folder / "b.json").write_text(f'{{"n": {records}}}\n')
    until(lambda: len(written()) > records)
    assert sorted(written()) == list(range(records + 1))
    (folder / "c.late").write_text(f'{{"n": {records + 1}}}\n')
    for file in definitions(8, pattern="*"):
        weir_connect("update", file)
    until(lambda: len(written()) > records + 1)
    assert sorted(written()) == list(range(records + 2))
    assert [row["n"] for row in weir.values(unique)] == list(range(records + 2))
    assert {one.connector.id for one in all_connectors(weir.place.access)} == ids
    for file in definitions(8, pattern="*"):
        assert "is unchanged" in weir_connect("update", file)
        weir_connect("remove", Path(file).stem)


def test_rows_of_a_table_are_in_another_one_once_though_their_connectors_are_updated(
    weir: Weir,
    weir_connect: Cli,
    running: RunnerThread,
    postgresql: PostgresqlServer,
    database: "psycopg.Connection[Any]",
    tmp_path: Path,
    unique: str,
) -> None:
    rows = 200
    database.execute(f'CREATE TABLE "{unique}" (id int PRIMARY KEY)')
    database.execute(f'INSERT INTO "{unique}" SELECT generate_series(1, {rows})')
    database.execute(
        f'CREATE TABLE "{unique}-copy" (id int)'
    )  # no key: a row that came twice would be there twice

    def files(batch: int) -> list[str]:
        found = []
        for side, more in (("source", 'column = "id"\npoll = "5ms"'), ("sink", 'mode = "insert"')):
            table = unique if side == "source" else f"{unique}-copy"
            file = tmp_path / f"{unique}-{side}.toml"
            file.write_text(
                f'topic = "{unique}"\n[{side}]\ntype = "postgresql"\ndsn = "{postgresql.dsn}"\n'
                f'table = "{table}"\n{more}\nbatch = {batch}\n'
            )
            found.append(str(file))
        return found

    def copied() -> int:
        (count,) = database.execute(f'SELECT count(*) FROM "{unique}-copy"').fetchone() or (0,)
        return int(count)

    weir.create(unique)
    for file in files(1):
        weir_connect("add", file)
    running.start()
    for batch in range(2, 6):
        before = copied()
        until(lambda before=before: copied() > before or copied() == rows)
        for file in files(batch):
            weir_connect("update", file)
    until(lambda: copied() >= rows)
    database.execute(f'INSERT INTO "{unique}" VALUES ({rows + 1})')
    until(lambda: copied() > rows)
    found = [number for (number,) in database.execute(f'SELECT id FROM "{unique}-copy" ORDER BY id')]
    assert found == list(range(1, rows + 2))
    for file in files(5):
        weir_connect("remove", Path(file).stem)


def test_an_update_of_another_place_or_of_no_connector_is_refused(
    weir: Weir, weir_connect: Cli, folder: Path, tmp_path: Path, unique: str
) -> None:
    file = tmp_path / f"{unique}.toml"
    text = f'topic = "{unique}"\n[source]\ntype = "files"\npath = "{folder}"\n'
    file.write_text(text)
    missing = weir_connect.run("update", str(file))
    assert (missing.exit_code, isinstance(missing.exception, ConnectorNotFoundError)) == (1, True)
    with pytest.raises(ConnectorNotFoundError):
        update_connector(weir.place.access, TopicName.parse(unique), "{}")
    weir_connect("add", str(file))
    file.write_text(text.replace(str(folder), str(tmp_path)))
    refused = weir_connect.run("update", str(file))
    assert "cannot change path" in str(refused.exception)
    file.write_text(f'{text}poll = "2s"\n')
    assert "can be updated" in weir_connect("update", str(file), "--check")
    assert "poll" not in weir_connect("describe", unique)
    weir_connect("update", str(file))
    assert "2s" in weir_connect("describe", unique)
    weir_connect("remove", unique)
