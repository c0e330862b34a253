"""Messages that are not as their schema says, columns that `*` leaves out, and scripts looked at before."""

import json

import pytest

from weir.model.errors import SqlError
from weir.model.topics import TopicName
from weir.spark.columns import check_columns
from weir.spark.sql.parsing import parse_script

from .sql_session import Sql

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


def test_a_message_that_does_not_fit_fails_the_query_or_goes_into_a_column_or_is_left_out(sql: Sql) -> None:
    sql.orders("poison_orders", count=2)
    sql.topics.fill("poison_orders", ["no order"])
    with pytest.raises(SqlError, match="poison_orders-0 at offset 2 is not as the topic's schema says") as failed:
        sql.rows("SELECT * FROM poison_orders")
    assert "\n" not in failed.value.what
    assert failed.value.__cause__ is not None  # for --debug
    permissive = "poison_orders WITH (mode = 'PERMISSIVE')"
    assert sql.rows(f"SELECT * FROM {permissive} o ORDER BY o.__offset") == [
        (0, "c0", 0.0, None),
        (1, "c1", 0.5, None),
        (None, None, None, "no order"),
    ]
    assert sql.rows(f"SELECT id, __offset FROM {permissive} WHERE _corrupt_record IS NOT NULL") == [(None, 2)]
    left = "SELECT *, __offset AS __offset FROM poison_orders WITH (mode = 'dropmalformed') ORDER BY id"
    assert sql.rows(left) == [(0, "c0", 0.0, 0), (1, "c1", 0.5, 1)]


def test_a_dead_letter_is_the_message_as_it_was_and_says_where_it_comes_from(sql: Sql) -> None:
    sql.orders("poison_letters", count=1)
    sql.topics.fill("poison_letters", ["no order"])
    frame = sql.console.tables.dead_letters(TopicName.parse("poison_letters"), {}, streaming=False)
    check_columns(frame.schema)  # a sink takes it
    (row,) = frame.collect()
    assert (bytes(row.key), bytes(row.value)) == (b"no order", b"no order")
    assert [(one.key, bytes(one.value)) for one in row.headers] == [
        ("weir-dead-letter-topic", b"poison_letters"),
        ("weir-dead-letter-partition", b"0"),
        ("weir-dead-letter-offset", b"1"),
    ]


def test_a_stream_goes_on_past_messages_that_do_not_fit_and_keeps_them_as_dead_letters(sql: Sql) -> None:
    sql.orders("poison_source", count=1)
    sql.topics.fill("poison_source", ["no order"])
    sql.do("CREATE STREAM poison_good WITH (mode = 'DEADLETTER') AS SELECT id, amount FROM poison_source")
    sql.orders("poison_source", 1, 1)
    sql.until(lambda: len(sql.stored("poison_good")) == 2 and bool(sql.stored("poison_good-DLQ")))
    assert [json.loads(value)["id"] for _, value in sql.stored("poison_good")] == [0, 1]
    assert sql.stored("poison_good-DLQ") == [("no order", "no order")]


def test_several_statements_are_all_looked_at_before_one_is_done(sql: Sql) -> None:
    sql.orders("before_orders", count=1)

    def check(script: str) -> None:
        sql.console.check([(f"statement {one.number}", one.statement) for one in parse_script(script)])

    first = "CREATE STREAM before_s AS SELECT id FROM before_orders; "
    for wrong, said in (
        ("SELEC 1", "statement 2.*Syntax error"),
        ("SELECT * FROM before_none", "there is no topic before_none; nothing was done"),
        ("SELECT none FROM before_orders", "none.* cannot be resolved"),
        ("INSERT INTO before_orders (id, none) VALUES (1, 2)", "has no column none"),
        ("INSERT INTO before_orders SELECT id FROM before_orders", "column amount of before_orders is missing"),
        ("PAUSE STREAM before_t", "there is no stream before_t"),
        ("CREATE STREAM before_s AS SELECT id FROM before_orders", "there is a stream before_s already"),
        ("CREATE VIEW v AS SELECT none FROM before_orders", "cannot be resolved"),
        ("DROP VIEW v", "there is no view v"),
    ):
        with pytest.raises(Exception, match=said):
            check(first + wrong)
    check(
        first + "SELECT * FROM before_s; CREATE VIEW v AS SELECT id AS x FROM before_orders; SELECT x FROM v; "
        "DESCRIBE STREAM before_s; DROP STREAM before_s; CREATE TEMP VIEW w AS SELECT 1 AS y; SELECT y FROM w"
    )
    assert ("before_s",) not in sql.rows("SHOW TABLES")
