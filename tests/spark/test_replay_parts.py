"""Parts of a replay that need neither Spark nor brokers: batches that are always the same, and statements."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.definitions import Replay, is_selection
from weir.model.errors import SqlError
from weir.model.topics import TopicName
from weir.spark.replay.delivery import grouped, in_turns, runs
from weir.spark.replay.selection import selection_topic
from weir.spark.sql import statements as s
from weir.spark.sql.parsing import parse

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
COLUMNS = pa.schema([("n", pa.int64()), ("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS)])


def _batches(rows: list[tuple[bytes | None, bytes | None, list[dict[str, object]] | None]], sizes: list[int]):
    """In pieces of these sizes, and the rest."""
    at = 0
    for size in (*sizes, len(rows)):
        some = rows[at : at + size]
        if some:
            names = (range(at, at + len(some)), *zip(*some, strict=True))
            columns = [pa.array(list(one), field.type) for one, field in zip(names, COLUMNS, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=COLUMNS)
        at += size


SMALL = st.none() | st.binary(max_size=4)
ROWS = st.lists(
    st.tuples(SMALL, SMALL, st.none() | st.lists(st.fixed_dictionaries({"key": st.just("h"), "value": SMALL}))),
    max_size=40,
)


@given(ROWS, st.lists(st.integers(1, 9), max_size=12), st.integers(1, 7), st.integers(1, 20))
def test_batches_are_cut_by_place_and_size_whatever_pieces_the_selection_is_read_in(
    rows: list, sizes: list[int], count: int, most: int
) -> None:
    found = [batch.column("n").to_pylist() for batch in grouped(_batches(rows, sizes), count, most)]
    expected: list[list[int]] = []
    full = True
    for n, (key, value, headers) in enumerate(rows):
        if full:
            expected.append([])
            size = 0
        expected[-1].append(n)
        size += len(key or b"") + len(value or b"")
        size += sum(1 + len(one["value"] or b"") for one in headers or ())
        full = len(expected[-1]) == count or size >= most
    assert found == expected


@given(st.lists(st.integers(0, 4), max_size=9), st.integers(1, 4))
def test_parts_take_turns_and_only_so_many_are_open(sizes: list[int], most: int) -> None:
    open_: set[int] = set()

    def part(number: int) -> Iterator[tuple[int, int]]:
        open_.add(number)
        assert len(open_) <= most
        for at in range(sizes[number]):
            yield number, at
        open_.remove(number)

    found = list(in_turns([part(number) for number in range(len(sizes))], most))
    assert sorted(found) == [(number, at) for number, size in enumerate(sizes) for at in range(size)]
    assert all([at for n, at in found if n == number] == list(range(size)) for number, size in enumerate(sizes))


def test_a_batch_ends_where_the_schemas_version_changes_and_around_what_must_stay_as_it_is() -> None:
    zero, one = ({"key": "weir-schema-version", "value": value} for value in (b"0", b"1"))
    other, closed = {"key": "a", "value": b"1"}, {"key": "weir-pulsar-metadata", "value": b"m"}
    headers = [[], [other], None, [zero], [other, zero, other], [one], [closed], [closed], [other, one]]
    rows = pa.RecordBatch.from_arrays([pa.array(range(9)), pa.array(headers, HEADERS)], ["n", "headers"])
    cut = [part.column("n").to_pylist() for part in runs(rows)]
    assert cut == [[0, 1, 2], [3, 4], [5], [6], [7], [8]]
    assert [part.column("n").to_pylist() for part in runs(rows.slice(4, 3))] == [[4], [5], [6]]


def test_a_selection_is_known_by_its_name() -> None:
    orders = TopicName.parse("acme/shop/orders")
    found = selection_topic(Replay("r1", orders, "billing", orders))
    assert str(found) == "persistent://acme/shop/__replay-r1"
    assert is_selection(found)
    assert not is_selection(orders)


def test_a_statement_says_which_messages_and_where_they_go() -> None:
    (one,) = parse(
        "REPLAY shop.orders FROM '-2h' TO '2026-11-16' WHERE a IN ('into') OR `into` = 1 INTO SUBSCRIPTION billing"
    )
    assert one == s.ReplayMessages(
        ("shop", "orders"), "subscription:billing", "a IN ('into') OR `into` = 1", "-2h", "2026-11-16"
    )
    (two,) = parse("replay orders into topic acme.shop.audit rate 50 dry run")
    assert two == s.ReplayMessages(("orders",), "topic:acme/shop/audit", rate=50, dry_run=True)
    (three,) = parse("REPLAY orders INTO TOPIC shop.audit")
    assert three == s.ReplayMessages(("orders",), "topic:public/shop/audit")
    assert parse("SHOW REPLAYS; REPLAY SELECTION OF 'r1'") == [s.ShowReplays(), s.SelectReplay("r1")]


@pytest.mark.parametrize(
    "text",
    [
        "REPLAY",
        "REPLAY orders",
        "REPLAY orders INTO x RATE none",
        "REPLAY o WHERE INTO x",
        "REPLAY o FROM -2h INTO x",
    ],
)
def test_a_statement_that_says_too_little_is_an_error(text: str) -> None:
    with pytest.raises(SqlError):
        parse(text)
