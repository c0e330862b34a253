"""A real PostgreSQL, both ways: every row once, late ones too; types by the registry; deletes; dead letters."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from weir.connect.values import latest_schema, record_of, register
from weir.model.errors import ConnectorError
from weir.model.topics import TopicName
from weir.testing.processes.postgresql import PostgresqlServer

from .conftest import Weir

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("connect")]

Database = psycopg.Connection[Any]


def source(postgresql: PostgresqlServer, topic: str, **more: Any) -> dict[str, Any]:
    return {"topic": topic, "source": {"type": "postgresql", "dsn": postgresql.dsn, **more}}


def sink(postgresql: PostgresqlServer, topic: str, **more: Any) -> dict[str, Any]:
    return {"topic": topic, "sink": {"type": "postgresql", "dsn": postgresql.dsn, **more}}


def test_rows_come_once_in_their_order_with_types_keys_and_a_schema(
    weir: Weir, postgresql: PostgresqlServer, database: Database, unique: str
) -> None:
    database.execute(
        f"""CREATE TABLE "{unique}" (id bigserial PRIMARY KEY, name text, price numeric, at timestamptz,
        tags text[], day date, ok boolean, raw bytea)"""
    )
    insert = f"""INSERT INTO "{unique}" (name, price, at, tags, day, ok, raw)
        VALUES (%s, 12.34, '2026-01-02T03:04:05.000006Z', '{{a,b}}', '2026-01-02', true, 'x')"""
    for number in range(25):  # ids of one and of two digits: they are numbers, not texts
        database.execute(insert, (f"n{number}",))
    said = source(postgresql, unique, table=unique, column="id", batch=10)
    with weir.task(unique, said) as running:
        running.until(lambda: len(weir.values(unique)) == 25)
        running.steps()
    database.execute(insert, ("late",))
    with weir.task(unique, said) as running:  # another runner goes on where the last one was
        running.until(lambda: len(weir.values(unique)) == 26)
        running.steps()
    found = weir.messages(unique)
    assert [bytes(one.key or b"") for _, one in found] == [str(number).encode() for number in range(1, 27)]
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert json.loads(bytes(found[-1][1].value or b"")) == {
        "id": 26,
        "name": "late",
        "price": "12.34",
        "at": int(moment.timestamp()) * 1_000_000 + 6,
        "tags": '["a", "b"]',
        "day": 20455,
        "ok": True,
        "raw": "eA==",
    }
    (schema,) = latest_schema(weir.place.access, TopicName.parse(unique))
    assert schema.kind == "JSON"


def test_a_row_that_commits_behind_a_later_one_is_not_missed(
    weir: Weir, postgresql: PostgresqlServer, database: Database, unique: str
) -> None:
    database.execute(f'CREATE TABLE "{unique}" (id bigserial PRIMARY KEY, name text)')
    said = source(postgresql, unique, table=unique, column="id")
    with weir.task(unique, said) as running, psycopg.connect(postgresql.dsn) as slow:
        slow.execute(f"""INSERT INTO "{unique}" (name) VALUES ('first')""")
        database.execute(f"""INSERT INTO "{unique}" (name) VALUES ('second')""")
        running.steps(5)
        assert weir.values(unique) == []
        slow.commit()
        running.until(lambda: len(weir.values(unique)) == 2)
    assert [row["name"] for row in weir.values(unique)] == ["first", "second"]


def test_changed_rows_come_again_by_the_time_of_their_change_also_as_avro(
    weir: Weir, postgresql: PostgresqlServer, database: Database, unique: str
) -> None:
    database.execute(f'CREATE TABLE "{unique}" (id int PRIMARY KEY, name text, changed timestamptz DEFAULT now())')
    database.execute(f"""INSERT INTO "{unique}" (id, name) SELECT n, 'x' FROM generate_series(1, 7) n""")
    said = source(postgresql, unique, table=unique, column="changed", values="avro", batch=3)
    with weir.task(unique, said) as running:  # all seven have one time: pages end within it
        running.until(lambda: len(weir.messages(unique)) == 7)
        database.execute(f"""UPDATE "{unique}" SET name = 'y', changed = now() WHERE id = 4""")
        running.until(lambda: len(weir.messages(unique)) == 8)
        running.steps()
    keys = [bytes(one.key or b"") for _, one in weir.messages(unique)]
    assert keys == [b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"4"]
    (schema,) = latest_schema(weir.place.access, TopicName.parse(unique))
    assert schema.kind == "AVRO"
    # And back, typed by that schema, into a table that the sink makes.
    copy = f"{unique}-copy"
    back = sink(postgresql, unique, table=copy, key=["id"], create=True)
    with weir.task(copy, back) as running:
        running.until(lambda: running.task.status.lag == 0)
    rows = database.execute(f'SELECT id, name, changed FROM "{copy}" ORDER BY id').fetchall()
    assert rows == database.execute(f'SELECT id, name, changed FROM "{unique}" ORDER BY id').fetchall()


def test_rows_of_a_query_come_by_their_column_whatever_is_written_in_it(
    weir: Weir, postgresql: PostgresqlServer, database: Database, unique: str
) -> None:
    database.execute(f'CREATE TABLE "{unique}" (id int PRIMARY KEY, "share %%" text)', ())
    insert = f"""INSERT INTO "{unique}" SELECT n, CASE n %% 2 WHEN 0 THEN 'a%%b' ELSE 'other' END
        FROM generate_series(%s::int, %s::int) n"""
    database.execute(insert, (1, 6))
    query = f"""SELECT id * 10 AS place, "share %" AS share FROM "{unique}" WHERE "share %" LIKE 'a%' -- 100%"""
    said = source(postgresql, unique, query=query, column="place", key=["place"], batch=2)
    with weir.task(unique, said) as running:
        running.until(lambda: len(weir.values(unique)) == 3)
    database.execute(insert, (7, 8))
    with weir.task(unique, said) as running:
        running.until(lambda: len(weir.values(unique)) == 4)
        running.steps()
    assert weir.values(unique) == [{"place": place, "share": "a%b"} for place in (20, 40, 60, 80)]


def test_rows_replace_those_of_their_key_and_tombstones_delete_exactly_once(
    weir: Weir, postgresql: PostgresqlServer, database: Database, unique: str
) -> None:
    weir.create(unique)
    register(
        weir.place.access, TopicName.parse(unique), "JSON", record_of("row", [("id", "int"), ("price", "string")])
    )
    database.execute(f'CREATE TABLE "{unique}" (id int PRIMARY KEY, price numeric, seen int DEFAULT 1)')
    rows = [(b"1", b'{"id": 1, "price": "1.50"}'), (b"2", b'{"id": 2, "price": "2.5"}'), (b"1", None)]
    weir.fill(unique, [*rows, (b"2", b'{"id": 2, "price": "9.99"}'), (b"3", b'{"id": 3, "price": null}')])
    said = sink(postgresql, unique, table=unique)
    with weir.task(unique, said) as running:
        running.until(lambda: running.task.status.lag == 0)
    with weir.task(unique, said) as running:
        running.steps()
    found = database.execute(f'SELECT * FROM "{unique}" ORDER BY id').fetchall()
    assert found == [(2, Decimal("9.99"), 1), (3, None, 1)]


def test_fields_without_a_column_and_tombstones_are_left_out_if_wanted(
    weir: Weir, postgresql: PostgresqlServer, database: Database, unique: str
) -> None:
    weir.create(unique)
    database.execute(f'CREATE TABLE "{unique}" (n int PRIMARY KEY)')
    weir.fill(unique, [(b"1", b'{"n": 1, "colour": "red"}'), (b"1", None), (b"2", b'{"n": 2}')])
    refused = pytest.raises(ConnectorError, match=r"at offset 0: .*no column colour")
    with weir.task(unique, sink(postgresql, unique, table=unique)) as running, refused:
        running.steps()
    said = sink(postgresql, unique, table=unique, ignore_extra=True, deletes=False)
    with weir.task(unique, said) as running:
        running.until(lambda: running.task.status.lag == 0)
    assert [row[0] for row in database.execute(f'SELECT n FROM "{unique}" ORDER BY n')] == [1, 2]


def test_what_was_written_and_not_told_to_the_broker_is_not_written_again(
    weir: Weir, postgresql: PostgresqlServer, database: Database, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weir.create(unique)
    database.execute(f'CREATE TABLE "{unique}" (n int)')
    weir.fill(unique, [(None, json.dumps({"n": number}).encode()) for number in range(10)])
    said = sink(postgresql, unique, table=unique, mode="insert", batch=4)
    with weir.task(unique, said) as running:
        monkeypatch.setattr(running.task, "done", lambda piece: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            running.steps()
    with weir.task(unique, said) as running:
        running.until(lambda: running.task.status.lag == 0)
    assert [row[0] for row in database.execute(f'SELECT n FROM "{unique}" ORDER BY n')] == list(range(10))


def test_a_message_that_no_row_can_be_made_of_stops_the_sink_or_is_a_dead_letter(
    weir: Weir, postgresql: PostgresqlServer, database: Database, unique: str
) -> None:
    weir.create(unique)
    database.execute(f'CREATE TABLE "{unique}" (n int PRIMARY KEY)')
    weir.fill(unique, [(None, b'{"n": 1}'), (b"k", b'{"n": "many"}'), (None, b'{"n": 3}')])
    said = sink(postgresql, unique, table=unique)
    with weir.task(unique, said) as running, pytest.raises(ConnectorError, match=r"at offset 1: .*integer"):
        running.steps()
    with weir.task(unique, sink(postgresql, unique, table=unique, on_error="dead_letter")) as running:
        running.until(lambda: running.task.status.lag == 0)
        assert running.task.status.dead_letters == 1
    assert [row[0] for row in database.execute(f'SELECT n FROM "{unique}" ORDER BY n')] == [1, 3]
    ((_, letter),) = weir.messages(f"{unique}-DLQ")
    assert (letter.key, letter.value) == (b"k", b'{"n": "many"}')
    assert dict(letter.headers)[b"weir-dead-letter-offset"] == b"1"
