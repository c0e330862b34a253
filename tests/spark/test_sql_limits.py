"""Limits of queries that one process parses for all tenants."""

import contextlib

import pytest

from weir.model.definitions import check_query_size
from weir.model.errors import SqlError
from weir.spark.tables.query import Query


@pytest.mark.parametrize("joins", [20, 200])
def test_joins_without_conditions_do_not_take_the_parser_exponential_time(joins: int) -> None:
    with pytest.raises(SqlError, match="too complex to parse"):
        Query.of("SELECT * FROM t" + " JOIN t" * joins)


def test_nested_calls_of_types_do_not_take_the_parser_exponential_time() -> None:
    with pytest.raises(SqlError, match="too complex to parse"):
        Query.of("SELECT " + "DECIMAL(" * 30 + "1" + ")" * 30 + " FROM t")


def test_queries_that_are_legal_stay_below_the_parsers_limit() -> None:
    for some in (
        "sum(a) over (partition by b order by c rows between unbounded preceding and current row)",
        "CAST(a AS DECIMAL(10,2)) AS x, date(date(b)), struct(a, b), map(a, b), array(a)[1]",
        "transform(filter(x, y -> y > 1), (a, b) -> a + b)",
        "CASE WHEN a IN (1, 2) THEN date('2020-01-01') + INTERVAL 1 DAY ELSE decimal(1) END",
    ):
        Query.of("SELECT " + ", ".join([some] * 150) + " FROM t", safe=True)
    Query.of("SELECT * FROM t" + "".join(f" LEFT JOIN x y{n} ON y{n}.a = t.b" for n in range(100)), safe=True)


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT a FROM t WHERE a IN (" + "1," * 5_000 + "1)", "more than 10,000 words"),
        ("SELECT a FROM t WHERE a = '" + "x" * 100_000 + "'", "the limit is 100,000"),
        ("SELECT " + "(" * 51 + "1" + ")" * 51 + " FROM t", "more than 50 brackets"),
    ],
)
def test_a_stored_query_has_a_limited_size(sql: str, says: str) -> None:
    with pytest.raises(SqlError, match=says):
        check_query_size(sql)
    with pytest.raises(SqlError, match=says):
        Query.of(sql, safe=True)


def test_literals_and_comments_count_as_one_or_nothing() -> None:
    for text in ("'" + "( a" * 20_000 + "'", '"' + '\\"(' * 20_000 + '"', "`" + "( " * 20_000 + "`"):
        check_query_size(f"SELECT {text} FROM t")
    check_query_size("SELECT 1 -- " + "( a" * 20_000 + "\n FROM t /* " + "( *" * 10_000 + " */")


@pytest.mark.parametrize("text", ["'\\", '"\\', "/*", "/**", "`", "'" * 3 + "\\", "--", "a", "''", "\\'"])
def test_no_text_takes_the_size_check_more_than_linear_time(text: str) -> None:
    with contextlib.suppress(SqlError):
        check_query_size((text * 100_000)[:100_000])


def test_what_the_scopes_of_a_query_refuse_is_an_error_of_its_text() -> None:
    with pytest.raises(SqlError, match="Alias already used"):
        Query.of("SELECT * FROM t CROSS JOIN t")
