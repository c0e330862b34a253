"""What SQL can say of topics, with real Spark: views, subqueries, INSERT, and state in streams, counted."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from weir.client.admin import ask_v2
from weir.model.errors import SqlError
from weir.spark.sql.parsing import parse
from weir.spark.sql.results import Done
from weir.spark.sql.statements import SelectStream
from weir.wire.kafka.records import Record, build_batch

from .sql_session import Sql, patiently

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]

_BEGIN = 1_700_000_000_000


def live(sql: Sql, text: str, count: int) -> list[tuple[object, ...]]:
    """The first rows of a live query."""
    (statement,) = parse(text)
    assert isinstance(statement, SelectStream)
    seen: list[tuple[object, ...]] = []
    with closing(sql.console.live(statement)) as batches:
        for some in batches:
            seen += [tuple(row) for row in some.rows]
            if len(seen) >= count:
                break
    return sorted(seen, key=str)


def test_topics_stand_wherever_tables_do(sql: Sql) -> None:
    sql.orders("sqlq-a.b")
    sql.orders("sqlq_c", count=2)
    dashed = "`sqlq-a.b`"
    for text, expected in {
        f"WITH big AS (SELECT * FROM {dashed} WHERE id > 3) SELECT count(*) FROM big": [(2,)],
        f"SELECT id FROM {dashed} WHERE id IN (SELECT id FROM sqlq_c) ORDER BY id": [(0,), (1,)],
        f"SELECT a.id, b.id FROM {dashed} a JOIN {dashed} b ON a.id = b.id + 4 ORDER BY 1": [(4, 0), (5, 1)],
        f"SELECT (SELECT max(id) FROM public.default.{dashed}) + count(*) FROM sqlq_c": [(7,)],
        f"SELECT count(*) FROM {dashed} x WHERE NOT EXISTS (SELECT 1 FROM sqlq_c y WHERE y.id = x.id - 1)": [(4,)],
        f"SELECT count(*) FROM (SELECT id FROM {dashed} UNION ALL SELECT id FROM default.sqlq_c)": [(8,)],
        f"SELECT DISTINCT ON (customer) customer FROM {dashed}": [("c0",), ("c1",)],
        f"SELECT count(*), sum(n) FROM (SELECT DISTINCT ON (id % 4) 1 AS n, id FROM {dashed}) AS x": [(4, 4)],
        "SHOW TABLES LIKE 'sqlq*'": [(dashed,), ("sqlq_c",)],
        "SHOW TABLES IN public.other": [],
    }.items():
        assert sorted(sql.rows(text)) == expected, text


def test_a_view_is_a_name_for_a_query_that_may_be_a_live_one(sql: Sql, tmp_path: Path) -> None:
    sql.orders("sqlq_orders")
    sql.do("CREATE VIEW sqlq_big AS SELECT * FROM sqlq_orders WHERE id > 3 -- the big ones")
    sql.do("CREATE TEMP VIEW sqlq_two (number, half) AS SELECT id, amount FROM sqlq_big WHERE id < 5")
    assert sql.rows("SELECT * FROM sqlq_two") == [(4, 2.0)]
    assert ("number", "int", "yes") in sql.rows("DESCRIBE sqlq_two")
    assert ("sqlq_big",) in sql.rows("SHOW TABLES")
    sql.orders("sqlq_orders", 6, 2)
    assert sql.rows("SELECT count(*), max(v.id) FROM SQLQ_BIG AS v") == [(4, 7)]
    assert live(sql, "SELECT STREAM id FROM sqlq_big", 4) == [(4,), (5,), (6,), (7,)]
    sql.do("CREATE STREAM sqlq_copied AS SELECT id, customer FROM sqlq_big")
    sql.until_read("sqlq_copied")
    assert sql.rows("SELECT id FROM sqlq_copied ORDER BY id") == [(4,), (5,), (6,), (7,)]
    with pytest.raises(SqlError, match="already"):
        sql.do("CREATE VIEW sqlq_big AS SELECT 1 AS one")
    sql.do("CREATE OR REPLACE VIEW sqlq_big AS SELECT 1 AS one")
    assert sql.rows("SELECT * FROM sqlq_big") == [(1,)]
    sql.do("DROP VIEW sqlq_big")
    with pytest.raises(SqlError, match="no topic sqlq_big"):
        sql.do("SELECT * FROM sqlq_big")
    with pytest.raises(SqlError, match="nothing"):
        sql.do("CREATE VIEW sqlq_wrong AS SELECT nothing FROM sqlq_orders")
    where = tmp_path / "out"
    sql.do(f"INSERT OVERWRITE DIRECTORY '{where}' USING json SELECT id FROM sqlq_orders WHERE id < 2")
    lines = [line for file in where.glob("*.json") for line in file.read_text().splitlines()]
    assert sorted(lines) == ['{"id":0}', '{"id":1}']


def test_rows_are_inserted_all_or_none_as_the_topics_schema_has_them(sql: Sql) -> None:
    sql.orders("sqlq_in", count=1)
    done = sql.do("INSERT INTO sqlq_in VALUES (1, 'c1', 0.5), (2, NULL, 1)")
    assert isinstance(done, Done)
    assert done.fields == {"topic": "sqlq_in", "rows": 2}
    sql.do("INSERT INTO sqlq_in (amount, id, key) VALUES (1.5, 3, 'k')")
    sql.do("INSERT INTO sqlq_in SELECT id + 10 AS id, amount, customer AS key FROM sqlq_in WHERE id < 2")
    assert sql.rows("SELECT id, customer, amount, __key FROM sqlq_in WHERE id > 0 ORDER BY id") == [
        (1, "c1", 0.5, None),
        (2, None, 1.0, None),
        (3, None, 1.5, "k"),
        (10, None, 0.0, "c0"),
        (11, None, 0.5, "c1"),
    ]
    sql.topics.create(name="sqlq_text")
    sql.do("INSERT INTO sqlq_text (key, value) VALUES ('a', 'one')")
    sql.do("INSERT INTO sqlq_text VALUES ('two')")
    assert sql.rows("SELECT __key, value FROM sqlq_text ORDER BY __offset") == [("a", "one"), (None, "two")]
    sql.topics.create(name="sqlq_copies")
    wanted = [(b"weir-deliver-after", b"1"), (b"weir-schema-version", b"3"), (b"a", b"b")]
    sql.topics.send("sqlq_copies", build_batch([Record(0, 1_700_000_000_000, b"k", b"three", wanted)]))
    patiently(lambda: sql.rows("SELECT count(*) FROM sqlq_copies") == [(1,)])
    sql.do("INSERT INTO sqlq_text SELECT * FROM sqlq_copies")
    headers = "transform(__headers, h -> concat(h.key, '=', CAST(h.value AS string)))"
    (copied,) = sql.rows(f"SELECT __key, {headers}, unix_millis(__timestamp) FROM sqlq_text WHERE value = 'three'")
    assert copied == ("k", ["a=b"], 1_700_000_000_000)  # but for what held there alone
    for text, said in {
        "INSERT INTO sqlq_in VALUES (1, 'c')": "2 values for 3 columns",
        "INSERT INTO sqlq_in SELECT 1 AS id, 2 AS amount, 3 AS price": "no column price",
        "INSERT INTO sqlq_in SELECT 1 AS id": "column amount of sqlq_in is missing",
        "INSERT INTO sqlq_none VALUES (1)": "no topic sqlq_none",
        "INSERT INTO sqlq_in SELECT 'x' AS id, 1 AS amount": "(?i)cast",
    }.items():
        with pytest.raises(SqlError, match=said):
            sql.do(text)
    assert sql.rows("SELECT count(*) FROM sqlq_in") == [(6,)]


def test_duplicates_are_left_out_of_streams(sql: Sql) -> None:
    sql.orders("sqlq_twice")
    text = "FROM sqlq_twice WATERMARK __timestamp DELAY OF INTERVAL 1 HOUR"
    sql.do(f"CREATE STREAM sqlq_ids AS SELECT DISTINCT ON (id) id, amount {text}")
    sql.do("CREATE STREAM sqlq_customers AS SELECT DISTINCT customer FROM sqlq_twice")
    sql.do(
        "CREATE STREAM sqlq_sums WITH (mode=update) AS "
        "SELECT customer AS key, count(*) AS n, sum(amount) AS total "
        f"FROM (SELECT DISTINCT ON (id) * {text}) AS x GROUP BY customer"
    )
    names = ("sqlq_ids", "sqlq_customers", "sqlq_sums")
    for name in names:
        sql.until_read(name)
    sql.topics.fill(  # the same orders again, and one that is new
        "sqlq_twice",
        [json.dumps({"id": n, "customer": f"c{n % 2}", "amount": n / 2}) for n in (*range(6), 6, 6)],
        times=[_BEGIN + 7000 + n for n in range(8)],
    )
    for name in names:
        sql.until_read(name)
    assert sql.rows("SELECT id, amount FROM sqlq_ids ORDER BY id") == [(n, n / 2) for n in range(7)]
    assert sql.rows("SELECT customer FROM sqlq_customers ORDER BY 1") == [("c0",), ("c1",)]
    last = "SELECT __key, max_by(n, __offset), max_by(total, __offset) FROM sqlq_sums GROUP BY 1 ORDER BY 1"
    assert sql.rows(last) == [("c0", 4, 6.0), ("c1", 3, 4.5)]

    def state_of_ids() -> tuple[object, ...]:
        return {row[0]: row for row in sql.rows("SHOW STREAMS")}["sqlq_ids"]

    sql.until(lambda: state_of_ids()[5] == 7)  # rows of state: one for each order
    assert int(str(state_of_ids()[6])) > 0


def test_sessions_end_and_joins_give_up_when_the_watermark_passes(sql: Sql) -> None:
    sql.orders("sqlq_clicks", count=3)  # at 0, 1 and 2 seconds
    sql.orders("sqlq_paid", count=2)
    sql.do(
        "CREATE STREAM sqlq_sessions AS SELECT customer, session_window(__timestamp, '5 seconds') AS s, "
        "count(*) AS n FROM sqlq_clicks WATERMARK __timestamp DELAY OF INTERVAL 1 SECOND GROUP BY 1, 2"
    )
    sql.do(
        "CREATE STREAM sqlq_unpaid AS SELECT c.id AS id, p.amount AS paid "
        "FROM sqlq_clicks WATERMARK __timestamp DELAY OF INTERVAL 1 SECOND c "
        "LEFT JOIN sqlq_paid WATERMARK __timestamp DELAY OF INTERVAL 1 SECOND p "
        "ON c.id = p.id AND p.__timestamp BETWEEN c.__timestamp AND c.__timestamp + INTERVAL 2 SECONDS"
    )
    sql.do(
        "CREATE STREAM sqlq_pairs AS SELECT a.id AS first, b.id AS second "
        "FROM sqlq_clicks WATERMARK __timestamp DELAY OF INTERVAL 1 MINUTE a "
        "JOIN sqlq_clicks WATERMARK __timestamp DELAY OF INTERVAL 1 MINUTE b "
        "ON a.id + 1 = b.id AND b.__timestamp BETWEEN a.__timestamp AND a.__timestamp + INTERVAL 1 SECOND"
    )
    sql.until_read("sqlq_sessions")
    for name in ("sqlq_clicks", "sqlq_paid"):  # an hour later: what came before is over
        value = json.dumps({"id": 100, "customer": "c", "amount": 1})
        sql.topics.fill(name, [value], times=[_BEGIN + 3_600_000])
    sessions = "SELECT customer, unix_millis(s_start), unix_millis(s_end), n FROM sqlq_sessions ORDER BY 1"
    sql.until(lambda: len(sql.stored("sqlq_sessions")) >= 2)
    assert sql.rows(sessions) == [("c0", _BEGIN, _BEGIN + 7000, 2), ("c1", _BEGIN + 1000, _BEGIN + 6000, 1)]
    unpaid = "SELECT id, paid FROM sqlq_unpaid WHERE id < 100 ORDER BY id"
    sql.until(lambda: len(sql.stored("sqlq_unpaid")) >= 4)  # these, and the pair of an hour later
    assert sql.rows(unpaid) == [(0, 0.0), (1, 0.5), (2, None)]
    sql.until(lambda: len(sql.stored("sqlq_pairs")) >= 2)
    assert sql.rows("SELECT first, second FROM sqlq_pairs ORDER BY 1") == [(0, 1), (1, 2)]


def test_a_paused_stream_shows_what_waits_for_it_and_one_dropped_without_a_runner_leaves_nothing(sql: Sql) -> None:
    sql.orders("sqlq_from")
    sql.do("CREATE STREAM sqlq_to AS SELECT id FROM sqlq_from")
    sql.until_read("sqlq_to")
    subscription = "persistent/public/default/sqlq_from/subscriptions"
    sql.until(lambda: bool(ask_v2(sql.place.access, "GET", subscription) == ["stream-sqlq_to"]))
    sql.do("PAUSE STREAM sqlq_to")
    sql.until(lambda: sql.state("sqlq_to") == "paused")
    sql.orders("sqlq_from", 6, 4)
    sql.until(lambda: dict(sql.rows("DESCRIBE STREAM sqlq_to"))["lag"] == 4)
    sql.runner.close()
    (folder,) = sql.folder.iterdir()
    sql.do("DROP STREAM sqlq_to")
    assert folder.exists()
    sql.again()
    sql.until(lambda: not folder.exists())
    assert ask_v2(sql.place.access, "GET", subscription) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "WITH c AS (SELECT 1 AS id) SELECT * FROM (SELECT DISTINCT ON (id) * FROM c) x",
            "c is none.*CREATE VIEW",
        ),
        ("CREATE VIEW a.b AS SELECT 1", "one word"),
        ("DROP VIEW sqlq_no", "no view sqlq_no"),
        ("DESCRIBE STREAM sqlq_no", "no stream"),
    ],
)
def test_what_cannot_be_is_said_with_what_to_do(sql: Sql, text: str, said: str) -> None:
    with pytest.raises(Exception, match=said):
        sql.do(text)
