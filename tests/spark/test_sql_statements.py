"""What `weir sql` understands, without Spark."""

import pytest

from weir.model.errors import SqlError
from weir.spark.sql import statements as s
from weir.spark.sql.completion import completions
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
        ("WATCH STREAMS", s.Watch(s.ShowStreams())),
        ("watch stream a.b", s.Watch(s.DescribeStream(("a", "b")))),
        ("SHOW TABLES IN sales LIKE 'o*'", s.ShowTables(("sales",), "o*")),
        ("SHOW TABLES 'o*'", s.ShowTables((), "o*")),
        ("SHOW FUNCTIONS", s.Other("SHOW FUNCTIONS")),
        ("DROP VIEW IF EXISTS v", s.DropView(("v",), if_exists=True)),
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


def test_a_live_query_may_be_told_as_elsewhere() -> None:
    found = one("SELECT a FROM t EMIT CHANGES")
    assert isinstance(found, s.SelectStream)
    assert found.query.text == "SELECT a FROM t"
    created = one("CREATE STREAM x AS SELECT a FROM t EMIT CHANGES;")
    assert isinstance(created, s.CreateStream)
    assert created.query.text == "SELECT a FROM t"


@pytest.mark.parametrize(
    ("sql", "columns", "replaces", "lenient"),
    [
        ("CREATE VIEW v AS SELECT a FROM t", (), False, False),
        ("create or replace temp view v (x, `y z`) AS SELECT a, b FROM t", ("x", "y z"), True, False),
        ("CREATE TEMPORARY VIEW IF NOT EXISTS v AS SELECT a FROM t", (), False, True),
    ],
)
def test_views_have_a_name_columns_and_a_query(
    sql: str, columns: tuple[str, ...], replaces: bool, lenient: bool
) -> None:
    found = one(sql)
    assert isinstance(found, s.CreateView)
    assert (found.name, found.columns, found.or_replace, found.if_not_exists) == (
        ("v",),
        columns,
        replaces,
        lenient,
    )
    assert found.query.names == [("t",)]


def test_a_view_stands_in_a_query_as_the_text_that_it_is() -> None:
    found = one("SELECT v.a, u.b FROM V JOIN u WATERMARK t DELAY OF INTERVAL 1 DAY x ON V.a = x.b")
    assert isinstance(found, s.Select)
    expanded = found.query.where({"v": "SELECT a FROM t", "x": "SELECT 0"})
    assert expanded.text == (
        "SELECT v.a, u.b FROM (SELECT a FROM t) AS `V` JOIN u WATERMARK t DELAY OF INTERVAL 1 DAY x ON V.a = x.b"
    )
    assert expanded.names == [("t",), ("u",)]


def test_rows_to_insert_are_a_query_or_stand_there() -> None:
    found = one("INSERT INTO a.b (x, key) VALUES (1, 'k'), (2, ';')")
    assert isinstance(found, s.Insert)
    assert (found.name, found.columns, found.literal) == (("a", "b"), ("x", "key"), True)
    assert found.query.text == "VALUES (1, 'k'), (2, ';')"
    for sql in ("INSERT INTO TABLE b SELECT * FROM t", "INSERT INTO b BY NAME WITH c AS (SELECT * FROM t) FROM c"):
        found = one(sql)
        assert isinstance(found, s.Insert)
        assert (found.name, found.literal, found.query.names) == (("b",), False, [("t",)])


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT OVERWRITE DIRECTORY '/tmp/x' USING csv SELECT * FROM t",
        "CREATE TABLE x USING parquet AS WITH c AS (SELECT * FROM t) SELECT * FROM c",
        "CACHE TABLE x AS SELECT * FROM t",
    ],
)
def test_what_spark_does_with_a_query_may_read_topics(sql: str) -> None:
    found = one(sql)
    assert isinstance(found, s.Other)
    assert found.query is not None
    assert found.query.names == [("t",)]
    assert found.text + found.query.text == sql


@pytest.mark.parametrize(
    ("sql", "on", "inner"),
    [
        ("SELECT DISTINCT ON (a, f(b, 1)) a, c FROM t", ("a", "f(b, 1)"), "SELECT a, c FROM t"),
        ("SELECT DISTINCT a FROM t WHERE b", (), "SELECT a FROM t WHERE b"),
        (
            "WITH c AS (SELECT * FROM t) SELECT DISTINCT ON (a) * FROM c",
            ("a",),
            "WITH c AS (SELECT * FROM t) SELECT * FROM c",
        ),
    ],
)
def test_distinct_is_cut_out_of_a_query(sql: str, on: tuple[str, ...], inner: str) -> None:
    found = one(sql)
    assert isinstance(found, s.Select)
    distinct = found.query.distinct
    assert distinct is not None
    assert distinct.on == on
    keys = "".join(f"({key}) AS __weir_on_{at}, " for at, key in enumerate(on))
    assert " ".join(distinct.text().replace(keys, "").split()) == inner
    assert found.query.names == [("t",)]


def test_distinct_within_a_query_is_a_part_of_it_with_the_time_of_its_watermark() -> None:
    found = one(
        "SELECT count(*) FROM (SELECT DISTINCT ON (id) id FROM orders WATERMARK ts DELAY OF INTERVAL 1 HOUR o) x "
        "JOIN (SELECT DISTINCT id FROM u) y ON x.id = y.id GROUP BY x.id HAVING count(DISTINCT x.id) > 0"
    )
    assert isinstance(found, s.Select)
    first, second = found.query.distincts
    assert found.query.distinct is None
    assert (first.on, first.time, second.on, second.time) == (("id",), "`o`.`ts`", (), None)
    told = found.query.reading({("u",): "`u1`"}, {first: "`v1`", second: "`v2`"})
    assert told.startswith("SELECT count(*) FROM (SELECT * FROM `v1`) x JOIN (SELECT * FROM `v2`) y ON")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SEL", ["SELECT", "SELECT STREAM"]),
        ("SELECT * FROM ord", ["orders"]),
        ("SELECT * FROM ", ["orders", "sales.`by-hour`"]),
        ("SELECT * FROM a JOIN s", ["sales.`by-hour`"]),
        ("INSERT INTO ", ["orders", "sales.`by-hour`"]),
        ("DROP STREAM o", ["orders"]),
        ("SELECT * FROM orders o WHERE o.am", ["amount"]),
        ("SELECT * FROM orders WHERE id = 1 AND (am", ["amount"]),
        ("DESCRIBE sales.`by-h", ["sales.`by-hour`"]),
        ("SELECT ", []),
        ("SELECT 'no amo", []),
    ],
)
def test_columns_topics_and_words_are_completed(text: str, expected: list[str]) -> None:
    columns = {("orders",): ["id", "amount", "__key"]}
    found = completions(text, text, ["orders", "sales.`by-hour`"], lambda table: columns.get(table, []))
    assert [one for one, _ in found] == expected


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
        (f"CREATE STREAM x AS SELECT {'(' * 2000}1{')' * 2000} FROM t", "nests more than 50 brackets"),
        ("CREATE STREAM x AS SELECT `Reflect` ('java.lang.System', 'exit', 1) FROM t", "not for streams"),
        ("CREATE STREAM x AS SELECT builtin.reflect('java.lang.System', 'exit', 1) FROM t", "not for streams"),
        ("CREATE STREAM x AS SELECT TRANSFORM(a) USING 'sh -c id' AS (b) FROM t", "not for streams"),
        ("CREATE STREAM x AS FROM t SELECT TRANSFORM(a) USING 'sh -c id'", "not for streams"),
        ("CREATE STREAM x AS SELECT * FROM t CROSS JOIN IDENTIFIER('text.`/etc/hostname`')", "not for streams"),
        ("CREATE STREAM x AS SELECT from_protobuf(a, 'm', '/etc/hostname') FROM t", "not for streams"),
        ("CREATE STREAM x AS SELECT java_method('java.lang.System', 'exit', 1) FROM t", "not for streams"),
        ("SELECT DISTINCT ON (a) a FROM t ORDER BY a", "ORDER BY beside it"),
        ("SELECT DISTINCT ON (a) a FROM t UNION ALL SELECT 1", "UNION beside it"),
        ("SELECT DISTINCT ON () a FROM t", "."),
        ("CREATE VIEW a.b AS SELECT 1", "one word"),
        ("INSERT INTO t", "rows are missing"),
        ("INSERT INTO t (a VALUES (1)", "is missing"),
        ("DROP STREAM", "name of the stream is missing"),
        ("PAUSE STREAM x y", "should end here"),
        ("PAUSE STREAM a-b", "should end here"),
        ("SELECT FROM WHERE t GROUP", "."),
        ("SELECT 'no end", "no SQL.*close what a quote"),
        ("SELECT * FROM my-topic", "not understood at line 1, near '-topic' .*backticks"),
        ("SELECT a\nFROM t x y", "not understood at line 2, near 'y'"),
        ("SELECT a FROM t WHERE", "something is missing at line 1, after 'WHERE'"),
        ("DESCRIBE my-topic", "near '-topic' .*backticks"),
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
