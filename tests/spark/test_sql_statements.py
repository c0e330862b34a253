"""What `weir sql` understands, without Spark."""

import pytest

from weir.model.errors import SqlError
from weir.spark.sql import statements as s
from weir.spark.sql.parsing import is_complete, parse


def one(sql: str) -> s.Statement:
    (found,) = parse(sql)
    return found


def names(sql: str) -> list[tuple[str, ...]]:
    found = one(sql)
    assert isinstance(found, s.Select | s.SelectStream | s.CreateStream)
    return found.query.names


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SHOW STREAMS", s.ShowStreams()),
        ("show topics;", s.ShowTables()),
        ("DESCRIBE STREAM x", s.DescribeStream(("x",))),
        ("desc stream a.b.c", s.DescribeStream(("a", "b", "c"))),
        ("DESCRIBE default.orders", s.DescribeTable(("default", "orders"))),
        ("PAUSE STREAM `my-stream`", s.PauseStream(("my-stream",))),
        ("resume stream sales.`by hour`", s.ResumeStream(("sales", "by hour"))),
        ("DROP STREAM IF EXISTS x", s.DropStream(("x",), if_exists=True)),
        ("DROP STREAM x -- with all that it has\n;", s.DropStream(("x",))),
        ("SET spark.sql.shuffle.partitions = 3", s.Other("SET spark.sql.shuffle.partitions = 3")),
    ],
)
def test_statements_of_weirs_own(sql: str, expected: s.Statement) -> None:
    assert one(sql) == expected


def test_a_stream_has_a_name_options_and_a_query() -> None:
    found = one("CREATE STREAM IF NOT EXISTS a.b WITH (mode = Update, MAXOFFSETSPERTRIGGER=5) AS SELECT 1 FROM t")
    assert isinstance(found, s.CreateStream)
    assert (found.name, found.if_not_exists) == (("a", "b"), True)
    assert found.options == {"mode": "update", "maxOffsetsPerTrigger": "5"}
    assert (found.query.text, found.query.names) == ("SELECT 1 FROM t", [("t",)])


def test_statements_are_parted_by_semicolons_that_are_not_in_texts_or_comments() -> None:
    found = parse("SELECT ';' FROM a; -- one; two\n ; SELECT 2 /* ; */ FROM b")
    assert [one.query.text for one in found if isinstance(one, s.Select)] == [
        "SELECT ';' FROM a",
        "SELECT 2 /* ; */ FROM b",
    ]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM orders", [("orders",)]),
        ("SELECT * FROM a.orders o JOIN b.orders p ON o.x = p.x", [("a", "orders"), ("b", "orders")]),
        ("SELECT * FROM t WHERE x IN (SELECT y FROM u) UNION ALL SELECT * FROM v", [("t",), ("u",), ("v",)]),
        ("WITH c AS (SELECT * FROM t) SELECT * FROM c JOIN d", [("t",), ("d",)]),
        ("WITH t AS (SELECT * FROM t) SELECT * FROM t", [("t",)]),
        ("SELECT * FROM range(10), t", [("t",)]),
        ("SELECT explode(x) e FROM t LATERAL VIEW explode(y) z AS q", [("t",)]),
        ("SELECT * FROM (SELECT * FROM `a-b`) s", [("a-b",)]),
        ("SELECT 1", []),
    ],
)
def test_tables_are_found_wherever_they_stand(sql: str, expected: list[tuple[str, ...]]) -> None:
    assert names(sql) == expected


def test_names_of_topics_become_views_and_nothing_else_changes() -> None:
    found = one("SELECT orders.x, p.y /* orders */ FROM default.orders JOIN `a-b`.pay AS p ON orders.id = p.id")
    assert isinstance(found, s.Select)
    assert found.query.reading({("default", "orders"): "`v1`", ("a-b", "pay"): "`v2`"}) == (
        "SELECT orders.x, p.y /* orders */ FROM `v1` AS `orders` JOIN `v2` AS p ON orders.id = p.id"
    )
    assert found.query.reading({}) == found.query.text


@pytest.mark.parametrize(
    ("clause", "alias"),
    [
        ("INTERVAL 10 SECONDS", ""),
        ("INTERVAL '10' SECOND", " o"),
        ("INTERVAL '10 seconds'", " AS o"),
        ("INTERVAL 1 MINUTE 30 SECONDS", ""),
    ],
)
def test_a_watermark_stays_and_the_alias_comes_after_it(clause: str, alias: str) -> None:
    text = f"FROM orders WATERMARK __timestamp DELAY OF {clause}"
    found = one(f"CREATE STREAM x AS SELECT count(*) {text}{alias} GROUP BY window(__timestamp, '1 minute')")
    assert isinstance(found, s.CreateStream)
    assert (found.query.watermarks, found.query.aggregates) == (True, True)
    told = found.query.reading({("orders",): "`v`"})
    said = text.replace("orders", "`v`")
    assert f"{said}{alias or ' AS `orders`'} GROUP BY" in told


def test_a_live_query_is_told_from_a_column_named_stream() -> None:
    found = one("SELECT STREAM a, b FROM t WHERE a > 1")
    assert isinstance(found, s.SelectStream)
    assert " ".join(found.query.text.split()) == "SELECT a, b FROM t WHERE a > 1"
    assert isinstance(one("WITH c AS (SELECT x FROM t) SELECT STREAM * FROM c"), s.SelectStream)
    for sql in ("SELECT stream FROM t", "SELECT stream, a FROM t", "SELECT `STREAM` a FROM t"):
        assert isinstance(one(sql), s.Select), sql


def test_headers_are_read_only_by_those_who_name_them() -> None:
    for sql, expected in (("SELECT * FROM t", False), ("SELECT size(__HEADERS) FROM t", True)):
        found = one(sql)
        assert isinstance(found, s.Select)
        assert found.query.headers is expected


def test_a_query_is_explained() -> None:
    found = one("EXPLAIN FORMATTED SELECT * FROM t")
    assert isinstance(found, s.Select)
    assert (found.explain, found.query.names) == ("EXPLAIN FORMATTED ", [("t",)])


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("CREATE STREAM AS SELECT 1 FROM t", "the statement|AS is missing|name"),
        ("CREATE STREAM x SELECT 1 FROM t", "AS is missing"),
        ("CREATE STREAM x AS", "query is missing"),
        ("CREATE STREAM x AS SELECT 1", "names none"),
        ("CREATE STREAM x AS DROP TABLE t", "no query"),
        ("CREATE STREAM a.b.c.d AS SELECT 1 FROM t", "too many parts"),
        ("CREATE STREAM x WITH (mod = 'update') AS SELECT 1 FROM t", "did you mean mode"),
        ("CREATE STREAM x WITH (mode = 'often') AS SELECT 1 FROM t", "append, update, complete"),
        ("CREATE STREAM x WITH (partitions = 'two') AS SELECT 1 FROM t", "a number"),
        ("CREATE STREAM x WITH (mode 'update') AS SELECT 1 FROM t", "= is missing"),
        ("CREATE STREAM x AS SELECT reflect('java.lang.System', 'exit', 1) FROM t", "not for streams"),
        ("CREATE STREAM x AS SELECT java_method('java.lang.System', 'exit', 1) FROM t", "not for streams"),
        ("DROP STREAM", "name of the stream is missing"),
        ("PAUSE STREAM x y", "should end here"),
        ("PAUSE STREAM a-b", "should end here"),
        ("SELECT FROM WHERE t GROUP", "."),
        ("SELECT 'no end", "no SQL"),
    ],
)
def test_what_is_wrong_is_said(sql: str, said: str) -> None:
    with pytest.raises(SqlError, match=said):
        parse(sql)


@pytest.mark.parametrize(
    ("sql", "whole"),
    [("SELECT 1;", True), ("SELECT 1", False), ("SELECT ';", False), ("", True), ("SELECT 1; SELECT", False)],
)
def test_the_prompt_knows_when_a_statement_is_whole(sql: str, whole: bool) -> None:
    assert is_complete(sql) is whole
