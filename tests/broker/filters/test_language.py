"""The language of filters, against SQLite's three-valued logic, and what it refuses."""

import sqlite3
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.broker.filters.message_filter import compiled
from weir.broker.filters.selector_language import KEY, MAX_CHARACTERS, MAX_DEPTH, MAX_TERMS, compile_sql
from weir.model.errors import FilterError
from weir.model.subscriptions import MessageFilter

NUMBERS, TEXTS, TRUTHS = ("n1", "n2"), ("t1", "t2"), ("b1", "b2")
WORDS = ["", "a", "b", "ab", "ba", "a%", "_b", "aab", "é", "%"]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


numbers = st.integers(-3, 3).map(str) | st.sampled_from(["0.5", "-1.5", "2.0", "1e0"])
texts = st.sampled_from(WORDS).map(_quoted)
signs = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
negated = st.sampled_from(["", "NOT "])


def _like() -> st.SearchStrategy[str]:
    patterns = st.lists(st.sampled_from(["a", "b", "%", "_", "!%", "!_", "!!"]), max_size=5).map("".join)
    return st.tuples(st.sampled_from(TEXTS), negated, patterns).map(
        lambda p: f"{p[0]} {p[1]}LIKE '{p[2]}' ESCAPE '!'"
    )


def _same_kind(names: tuple[str, ...], values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    name = st.sampled_from(names)
    operand = values | name | st.just("NULL")
    listed = st.lists(values | st.just("NULL"), min_size=1, max_size=3).map(", ".join)
    return st.one_of(
        st.tuples(operand, signs, operand).map(" ".join),
        st.tuples(name, negated, operand, operand).map(lambda p: f"{p[0]} {p[1]}BETWEEN {p[2]} AND {p[3]}"),
        st.tuples(name, negated, listed).map(lambda p: f"{p[0]} {p[1]}IN ({p[2]})"),
        st.tuples(name, negated).map(lambda p: f"{p[0]} IS {p[1]}NULL"),
    )


predicates = st.one_of(
    _same_kind(NUMBERS, numbers),
    _same_kind(TEXTS, texts),
    _like(),
    st.sampled_from(TRUTHS),
    st.sampled_from(["TRUE", "FALSE", "NULL"]),
    st.tuples(st.sampled_from(TRUTHS), st.sampled_from(["=", "<>"]), st.sampled_from(["TRUE", "FALSE"])).map(
        " ".join
    ),
)
expressions = st.recursive(
    predicates,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" AND ", " OR "]), inner).map("".join),
        inner.map(lambda one: f"({one})"),
        inner.map(lambda one: f"NOT ({one})"),
    ),
    max_leaves=8,
)
rows = st.fixed_dictionaries(
    {
        **dict.fromkeys(NUMBERS, st.none() | st.integers(-3, 3) | st.sampled_from([0.5, -1.5, 2.0])),
        **dict.fromkeys(TEXTS, st.none() | st.sampled_from(WORDS)),
        **dict.fromkeys(TRUTHS, st.none() | st.booleans()),
    }
)


@pytest.fixture(scope="module")
def database() -> sqlite3.Connection:
    opened = sqlite3.connect(":memory:")
    opened.execute("PRAGMA case_sensitive_like = ON")
    return opened


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(expression=expressions, row=rows)
def test_a_condition_is_true_false_or_unknown_as_sql_says(
    database: sqlite3.Connection, expression: str, row: dict[str, object]
) -> None:
    columns = ", ".join(f"? AS {name}" for name in row)
    (expected,) = database.execute(f"SELECT {expression} FROM (SELECT {columns})", [*row.values()]).fetchone()
    head = {name: str(value).encode() for name, value in row.items() if value is not None}
    found = compile_sql(expression)(head)
    assert found is (None if expected is None else bool(expected)), expression


HEAD = {"color": b"red", "price": b"12", "big": b"123456789012345678901234567890", "odd": b"x1", "up": b"TRUE"}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("odd > 1", None),
        ("odd <> 'x'", True),
        ("price < 9", False),  # as numbers
        ("price < '9'", True),  # as texts
        ("big = 123456789012345678901234567890", True),
        ("up", True),
        ("up = true", True),
        ("color CONTAINS 'e' AND color STARTSWITH 'r' and not color endswith 'x'", True),
        ("\"color\" = 'red' AND `price` = 12", True),
        ("12.0 = price", True),
        ("not color = 'it''s'", True),
        ("android = 1 or nothing is null and inside is null", True),
        ("KEYS = 'k' AND KEY = 'k'", True),
        ("color LIKE 'r%d' and color like '%e%' and color like 'red' and not color like 'r%dd'", True),
    ],
)
def test_properties_are_what_they_are_compared_with(expression: str, expected: bool | None) -> None:
    assert compile_sql(expression)({**HEAD, KEY: b"k"}) is expected


@pytest.mark.parametrize(
    ("expression", "position"),
    [
        ("color =", 8),
        ("color == 'red'", 8),
        ("(a = 1", 7),
        ("a = 1)", 6),
        ("a LIKE 5", 8),
        ("'x'", 1),
        ("a IN ()", 7),
        ("a = 1 AND ; b", 11),
        ("a BETWEEN 1", 12),
        ("a = 'x", 5),
        ("a < TRUE", 5),
        ("1 = 'a'", 5),
        ("a LIKE 'x!' ESCAPE '!'", 8),
        ("a LIKE 'x' ESCAPE '!!'", 19),
        ("__import__('os')", 11),
    ],
)
def test_a_wrong_expression_says_where_it_is_wrong(expression: str, position: int) -> None:
    with pytest.raises(FilterError, match=f"position {position}:") as refused:
        compiled(MessageFilter(expression))
    assert refused.value.position == position
    assert refused.value.hint


def test_expressions_are_bounded_in_size_depth_and_number_of_terms() -> None:
    for expression in (
        "a = 1 OR " * MAX_CHARACTERS,
        "NOT " * (MAX_DEPTH + 1) + "a",
        f"a IN ({','.join(['1'] * (MAX_TERMS + 1))})",
        " OR ".join(["a"] * (MAX_TERMS + 1)),
    ):
        with pytest.raises(FilterError, match=r"allowed|more than"):
            compiled(MessageFilter(expression))
    assert compile_sql("(" * 1000 + "a" + ")" * 1000)({"a": b"true"}) is True


@given(st.text(max_size=60) | st.text("abc='<>() ANDORNOTLIKE%_1.", max_size=60))
@settings(max_examples=150, deadline=None)
def test_any_text_is_a_filter_or_an_error_that_says_so(text: str) -> None:
    with suppress(FilterError):
        compile_sql(text)({})


@pytest.mark.parametrize(
    ("tags", "tag", "passes"),
    [
        ("a || b", b"b", True),
        ("a||b", b"c", False),
        ("*", None, True),
        ("a || *", b"z", True),
        ("a", None, False),
        ("a||||b", b"b", True),
        ("|| a || ", b"a", True),
        ("a||||b", b"", False),
        ("||".join(f"tag-{n}" for n in range(5000)), b"tag-4999", True),
    ],
)
def test_tags_pass_by_any_of_those_that_are_named(tags: str, tag: bytes | None, passes: bool) -> None:
    found = compiled(MessageFilter(tags=tags))
    assert (found is None or found.takes({} if tag is None else {"TAGS": tag})) is passes


@pytest.mark.parametrize("tags", ["||", " || ", "||||", "a" * 65_537, "||".join(f"{n}" for n in range(8_193))])
def test_filters_without_a_tag_or_with_too_many_are_wrong(tags: str) -> None:
    with pytest.raises(FilterError, match=r"names no tag|allowed"):
        compiled(MessageFilter(tags=tags))


@pytest.mark.parametrize(("tags", "position"), [("a || b|c", 5), ("|| a | c", 3), ("a | b", 1)])
def test_wrong_tags_say_where(tags: str, position: int) -> None:
    with pytest.raises(FilterError) as refused:
        compiled(MessageFilter(tags=tags))
    assert refused.value.position == position


def test_tags_and_sql_together_have_both_to_pass() -> None:
    found = compiled(MessageFilter("n > 1", "a"))
    assert found is not None
    assert [found.takes(head) for head in ({"TAGS": b"a", "n": b"2"}, {"TAGS": b"a"}, {"n": b"2"})] == [
        True,
        False,
        False,
    ]
