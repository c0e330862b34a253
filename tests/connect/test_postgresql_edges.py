"""PostgreSQL at its edges: all its types, rows that nothing tells apart, writers that others may not see, columns
that come and go, and what is refused since rows could be missed."""

import json
from typing import Any

import psycopg
import pytest

from weir.connect.values import latest_schema
from weir.model.errors import ConfigError, ConnectorError
from weir.model.topics import TopicName
from weir.testing.processes.postgresql import PostgresqlServer

from .conftest import Weir

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("connect")]

Database = psycopg.Connection[Any]

#: A type, what is written into it, and what comes.
_VALUES = [
    ("numeric", "12345678901234567890.1234567890", "12345678901234567890.1234567890"),
    ("numeric", "NaN", "NaN"),
    ("float8", "NaN", "NaN"),
    ("float8", "-Infinity", "-Infinity"),
    ("float4", "1.5", 1.5),
    ("int2", "-32768", -32768),
    ("int8", "9223372036854775807", 9223372036854775807),
    ("boolean", "false", False),
    ("timestamptz", "1969-12-31T23:59:59.999999Z", -1),
    ("timestamptz", "infinity", (1 << 63) - 1),
    ("timestamptz", "-infinity", -1 << 63),
    ("timestamp", "10000-01-01 00:00:00", 253402300800000000),
    ("timestamptz", "4713-01-01 00:00:00+00 BC", -210863520000000000),
    ("date", "1970-01-01", 0),
    ("date", "infinity", (1 << 31) - 1),
    ("date", "0001-12-31 BC", -719163),
    ("time", "24:00:00", "24:00:00"),
    ("timetz", "01:02:03+02", "01:02:03+02"),
    ("interval", "1 mon 2 days 03:04:05", "1 mon 2 days 03:04:05"),
    ("uuid", "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000001"),
    ("bytea", "\\xff00", "/wA="),
    ("json", '{"a":1.00000000000000000001}', '{"a":1.00000000000000000001}'),
    ("jsonb", '{"a": [1, null]}', '{"a": [1, null]}'),
    ("text[]", '{a,NULL,"b,c"}', '["a", null, "b,c"]'),
    ("int[]", "{{1,2},{3,4}}", "[[1, 2], [3, 4]]"),
    ("float8[]", "{1,NaN}", '[1.0, "NaN"]'),
    ("inet", "10.0.0.1/8", "10.0.0.1/8"),
    ("int4range", "[1,5)", "[1,5)"),
    ("text", "tab\tand 'quote' ü 🐘", "tab\tand 'quote' ü 🐘"),
    ("varchar(3)", None, None),
]


def source(postgresql: PostgresqlServer, topic: str, **more: Any) -> dict[str, Any]:
    said = {"type": "postgresql", "dsn": postgresql.dsn, "table": topic, "column": "id", **more}
    return {"topic": topic, "source": said}


def test_every_type_comes_and_goes_back_as_it_was(
    weir: Weir, postgresql: PostgresqlServer, database: Database, unique: str
) -> None:
    database.execute("DROP TYPE IF EXISTS mood; CREATE TYPE mood AS ENUM ('sad', 'happy')")
    values = [*_VALUES, ("mood", "happy", "happy")]
    columns = ", ".join(f"c{at} {kind}" for at, (kind, _, _) in enumerate(values))
    database.execute(f'CREATE TABLE "{unique}" (id int PRIMARY KEY, {columns})'.encode())
    places = ", ".join("%s" for _ in values)
    database.execute(f'INSERT INTO "{unique}" VALUES (1, {places})'.encode(), [text for _, text, _ in values])
    with weir.task(unique, source(postgresql, unique)) as running:
        running.until(lambda: weir.messages(unique))
    ((_, message),) = weir.messages(unique)

    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is no JSON")

    row = json.loads(bytes(message.value or b""), parse_constant=refuse)
    assert {name: row[name] for name in row if name != "id"} == {
        f"c{at}": wanted for at, (_, _, wanted) in enumerate(values)
    }
    copy = f"{unique}-copy"
    database.execute(f'CREATE TABLE "{copy}" (LIKE "{unique}" INCLUDING ALL)'.encode())
    said = {"type": "postgresql", "dsn": postgresql.dsn, "table": copy}
    with weir.task(copy, {"topic": unique, "sink": said}) as running:
        running.until(lambda: running.task.status.lag == 0)
    texts = ", ".join(f"c{at}::text" for at in range(len(values)))
    both = [database.execute(f'SELECT {texts} FROM "{one}"'.encode()).fetchall() for one in (unique, copy)]
    assert both[0] == both[1]


def test_a_writer_of_another_role_is_waited_for_though_it_may_not_be_looked_at(
    weir: Weir, postgresql: PostgresqlServer, database: Database, unique: str
) -> None:
    database.execute(f'CREATE TABLE "{unique}" (id int PRIMARY KEY, at timestamptz DEFAULT now())')
    database.execute(f'CREATE ROLE "{unique}" LOGIN; GRANT SELECT ON "{unique}" TO "{unique}"')
    dsn = postgresql.dsn.replace("user=weir", f"user={unique}")
    said = source(postgresql, unique, dsn=dsn, column="at")
    with weir.task(unique, said) as running, psycopg.connect(postgresql.dsn) as slow:
        slow.execute(f'INSERT INTO "{unique}" VALUES (1)')
        database.execute(f'INSERT INTO "{unique}" VALUES (2)')
        running.steps(5)
        assert weir.values(unique) == []
        slow.commit()
        running.until(lambda: len(weir.values(unique)) == 2)
    assert [row["id"] for row in weir.values(unique)] == [1, 2]


def test_a_transaction_that_is_prepared_is_waited_for(
    weir: Weir, postgresql: PostgresqlServer, database: Database, unique: str
) -> None:
    database.execute(f'CREATE TABLE "{unique}" (id int PRIMARY KEY, at timestamptz DEFAULT now())')
    with weir.task(unique, source(postgresql, unique, column="at")) as running:
        database.execute(f"BEGIN; INSERT INTO \"{unique}\" VALUES (1); PREPARE TRANSACTION '{unique}'")
        database.execute(f'INSERT INTO "{unique}" VALUES (2)')
        running.steps(5)
        assert weir.values(unique) == []
        database.execute(f"COMMIT PREPARED '{unique}'")
        running.until(lambda: len(weir.values(unique)) == 2)
    assert [row["id"] for row in weir.values(unique)] == [1, 2]


def test_a_writer_of_one_part_of_the_table_is_waited_for(
    weir: Weir, postgresql: PostgresqlServer, database: Database, unique: str
) -> None:
    database.execute(f'CREATE TABLE "{unique}" (id bigserial PRIMARY KEY) PARTITION BY RANGE (id)')
    database.execute(f'CREATE TABLE "{unique}-p" PARTITION OF "{unique}" DEFAULT')
    with weir.task(unique, source(postgresql, unique)) as running, psycopg.connect(postgresql.dsn) as slow:
        slow.execute(f'INSERT INTO "{unique}-p" DEFAULT VALUES')
        database.execute(f'INSERT INTO "{unique}" DEFAULT VALUES')
        running.steps(5)
        assert weir.values(unique) == []
        slow.commit()
        running.until(lambda: len(weir.values(unique)) == 2)
    assert [row["id"] for row in weir.values(unique)] == [1, 2]


def test_rows_that_nothing_tells_apart_are_not_parted_by_pages(
    weir: Weir, postgresql: PostgresqlServer, database: Database, unique: str
) -> None:
    database.execute(f'CREATE TABLE "{unique}" (id int, n int)')
    database.execute(f'INSERT INTO "{unique}" SELECT (n + 2) / 3, n FROM generate_series(1, 30) n')
    with weir.task(unique, source(postgresql, unique, batch=4)) as running:
        running.until(lambda: len(weir.values(unique)) == 30)
        running.steps()
    assert sorted(row["n"] for row in weir.values(unique)) == list(range(1, 31))
    database.execute(f'INSERT INTO "{unique}" SELECT 99, n FROM generate_series(31, 36) n')
    wrong = pytest.raises(ConnectorError, match="more than 4 rows have the same id")
    with weir.task(unique, source(postgresql, unique, batch=4)) as running, wrong:
        running.steps(5)
    with weir.task(unique, source(postgresql, unique, batch=10)) as running:
        running.until(lambda: len(weir.values(unique)) == 36)


def test_columns_that_come_and_go_while_it_runs_are_in_the_rows_and_in_the_schema(
    weir: Weir, postgresql: PostgresqlServer, database: Database, unique: str
) -> None:
    database.execute(f'CREATE TABLE "{unique}" (id int PRIMARY KEY, a text)')
    database.execute(f"INSERT INTO \"{unique}\" VALUES (1, 'x')")
    with weir.task(unique, source(postgresql, unique)) as running:
        running.until(lambda: len(weir.values(unique)) == 1)
        database.execute(f'ALTER TABLE "{unique}" ADD COLUMN b int')
        database.execute(f"INSERT INTO \"{unique}\" VALUES (2, 'y', 7)")
        running.until(lambda: len(weir.values(unique)) == 2)
        database.execute(f'ALTER TABLE "{unique}" DROP COLUMN a')
        database.execute(f'INSERT INTO "{unique}" VALUES (3, 8)')
        running.until(lambda: len(weir.values(unique)) == 3)
    assert weir.values(unique) == [{"id": 1, "a": "x"}, {"id": 2, "a": "y", "b": 7}, {"id": 3, "b": 8}]
    schema = latest_schema(weir.place.access, TopicName.parse(unique))[-1]
    assert [field["name"] for field in json.loads(schema.definition)["fields"]] == ["id", "a", "b"]


def test_the_key_is_there_though_it_is_not_among_the_columns(
    weir: Weir, postgresql: PostgresqlServer, database: Database, unique: str
) -> None:
    database.execute(f'CREATE TABLE "{unique}" (id int, at int, name text, PRIMARY KEY (id, at))')
    database.execute(f"INSERT INTO \"{unique}\" VALUES (1, 2, 'x')")
    with weir.task(unique, source(postgresql, unique, columns=["name"])) as running:
        running.until(lambda: weir.messages(unique))
    ((_, message),) = weir.messages(unique)
    assert (message.key, message.value) == (b'{"id": 1, "at": 2}', b'{"name": "x"}')


def test_numbers_that_sessions_take_in_blocks_are_refused(
    weir: Weir, postgresql: PostgresqlServer, database: Database, unique: str
) -> None:
    database.execute(f'CREATE TABLE "{unique}" (id bigint GENERATED ALWAYS AS IDENTITY (CACHE 20) PRIMARY KEY)')
    with pytest.raises(ConfigError, match=r"come in blocks.*CACHE 1"):
        weir.task(unique, source(postgresql, unique)).__enter__()
    with weir.task(unique, source(postgresql, unique, wait_for="none")) as running:
        running.steps(1)


def test_what_is_wrong_is_said_in_one_sentence(weir: Weir, postgresql: PostgresqlServer, unique: str) -> None:
    for more, said in (
        ({"table": "nowhere"}, r"^PostgreSQL: relation .nowhere. does not exist"),
        ({"dsn": "host=127.0.0.1 port=1 user=x dbname=x"}, r"^PostgreSQL: connection failed.*refused"),
        ({"dsn": "nonsense"}, r"dsn cannot be read"),
    ):
        with pytest.raises((ConnectorError, ConfigError), match=said) as told:
            weir.task(unique, source(postgresql, unique, **more)).__enter__()
        assert "\n" not in str(told.value)


def test_rows_without_a_key_come_too(
    weir: Weir, postgresql: PostgresqlServer, database: Database, unique: str
) -> None:
    database.execute(f'CREATE TABLE "{unique}" (id int, mail text)')
    database.execute(f"INSERT INTO \"{unique}\" VALUES (1, 'a'), (1, NULL), (2, NULL), (3, 'c'), (NULL, 'd')")
    with weir.task(unique, source(postgresql, unique, key=["mail"], batch=2)) as running:
        running.until(lambda: len(weir.values(unique)) == 4)
        running.steps()
    keys = sorted((row["id"], row["mail"] or "") for row in weir.values(unique))
    assert keys == [(1, ""), (1, "a"), (2, ""), (3, "c")]
    assert {message.key for _, message in weir.messages(unique)} == {b"a", b"c", None}


def test_names_may_have_dots_capitals_and_percent_signs_both_ways(
    weir: Weir, postgresql: PostgresqlServer, database: Database, unique: str
) -> None:
    database.execute(f'CREATE SCHEMA "{unique}.S"')
    database.execute(
        f'CREATE TABLE "{unique}.S"."From.Here" ("Id" int GENERATED ALWAYS AS IDENTITY, "A%c" text, '
        f'PRIMARY KEY ("Id", "A%c"))'
    )
    database.execute(f'CREATE TABLE "{unique}.S"."To.%There" (LIKE "{unique}.S"."From.Here" INCLUDING ALL)')
    database.execute(f'INSERT INTO "{unique}.S"."From.Here" ("A%c") VALUES (\'x\'), (\'y\')', None)
    said = source(postgresql, unique, table=f'"{unique}.S"."From.Here"', column="Id")
    with weir.task(unique, said) as running:
        running.until(lambda: len(weir.values(unique)) == 2)
    weir.fill(unique, [(b'{"Id": 1, "A%c": "x"}', None)])
    to = {"type": "postgresql", "dsn": postgresql.dsn, "table": f'"{unique}.S"."To.%There"'}
    with weir.task(unique, {"topic": unique, "sink": to}) as running:
        running.until(lambda: running.task.status.lag == 0)
    assert database.execute(f'SELECT * FROM "{unique}.S"."To.%There"').fetchall() == [(2, "y")]


@pytest.mark.parametrize("why", ["it is gone", "its key is not unique", "it may not be written"])
def test_what_is_wrong_with_the_table_makes_no_dead_letters(
    weir: Weir, postgresql: PostgresqlServer, database: Database, unique: str, why: str
) -> None:
    weir.create(unique)
    database.execute(f'CREATE TABLE "{unique}" (id int {"" if why.endswith("unique") else "PRIMARY KEY"})')
    dsn = postgresql.dsn
    if why.endswith("written"):
        database.execute(f'CREATE ROLE "{unique}" LOGIN; GRANT SELECT ON "{unique}" TO "{unique}"')
        database.execute(f'CREATE SCHEMA "{unique}" AUTHORIZATION "{unique}"')
        dsn = dsn.replace("user=weir", f"user={unique} options='-c search_path={unique},public'")
    said = {"type": "postgresql", "dsn": dsn, "table": unique, "key": ["id"], "on_error": "dead_letter"}
    with weir.task(unique, {"topic": unique, "sink": said}) as running:
        weir.fill(unique, [(b"1", b'{"id": 1}')])
        if why.endswith("gone"):
            database.execute(f'DROP TABLE "{unique}"')
        with pytest.raises(ConnectorError, match=r"there is no table|no unique|permission denied"):
            running.steps()
        assert running.task.status.dead_letters == 0
