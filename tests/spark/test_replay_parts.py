"""Parts of a replay that need neither Spark nor brokers: batches that are always the same, and statements."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import SqlError
from weir.model.replays import Replay, is_selection
from weir.model.topics import TopicName
from weir.spark.replay.delivering import grouped, runs
from weir.spark.replay.selecting import selection_topic
from weir.spark.sql import statements as s
from weir.spark.sql.parsing import parse


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 7))
def test_batches_are_cut_by_place_whatever_pieces_the_selection_is_read_in(sizes: list[int], count: int) -> None:
    rows = iter(range(sum(sizes)))
    pieces = [pa.RecordBatch.from_pydict({"n": [next(rows) for _ in range(size)]}) for size in sizes]
    found = [batch.column("n").to_pylist() for batch in grouped(iter(pieces), count)]
    assert [n for one in found for n in one] == list(range(sum(sizes)))
    assert all(len(one) == count for one in found[:-1])
    assert all(1 <= len(one) <= count for one in found[-1:])


def test_a_batch_ends_where_the_schemas_version_changes_and_around_what_must_stay_as_it_is() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    zero, one = ({"key": "weir-schema-version", "value": value} for value in (b"0", b"1"))
    other, closed = {"key": "a", "value": b"1"}, {"key": "weir-pulsar-metadata", "value": b"m"}
    headers = [[], [other], None, [zero], [other, zero, other], [one], [closed], [closed], [other, one]]
    rows = pa.RecordBatch.from_arrays([pa.array(range(9)), pa.array(headers, kind)], ["n", "headers"])
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
        "REPLAY shop.orders FROM '-2h' TO '2026-11-16' WHERE a IN ('into', 'x') INTO SUBSCRIPTION billing"
    )
    assert one == s.ReplayMessages(
        ("shop", "orders"), "subscription:billing", "a IN ('into', 'x')", "-2h", "2026-11-16"
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
