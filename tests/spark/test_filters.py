"""Filters decide what is read, and Spark looks again at those that are not fully kept."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from weir.client.kafka.cluster import Partition
from weir.spark.source.planning import Range, push

RANGES = [Range(Partition(topic, index), 0, 100) for topic in ("a", "b") for index in range(3)]


def narrowed(*filters: Filter) -> list[tuple[str, int, int, int]]:
    found, left = push(filters)
    assert left == []
    return [(r.partition.topic, r.partition.index, r.start, r.end) for r in found.narrow(RANGES)]


def test_without_filters_all_is_read() -> None:
    assert len(narrowed()) == 6


def test_partitions_and_topics_are_chosen() -> None:
    assert narrowed(EqualTo(("partition",), 1), EqualTo(("topic",), "a")) == [("a", 1, 0, 100)]
    assert narrowed(In(("partition",), (0, 2, 9)), In(("topic",), ("b", "c"))) == [
        ("b", 0, 0, 100),
        ("b", 2, 0, 100),
    ]
    assert narrowed(
        GreaterThan(("partition",), 1), LessThanOrEqual(("partition",), 2), EqualTo(("topic",), "a")
    ) == [("a", 2, 0, 100)]
    assert narrowed(EqualTo(("topic",), "a"), EqualTo(("topic",), "b")) == []


@pytest.mark.parametrize(
    ("filters", "span"),
    [
        ([GreaterThan(("offset",), 5)], (6, 100)),
        ([GreaterThanOrEqual(("offset",), 5), LessThan(("offset",), 50)], (5, 50)),
        ([LessThanOrEqual(("offset",), 50)], (0, 51)),
        ([EqualTo(("offset",), 7), IsNotNull(("offset",))], (7, 8)),
    ],
)
def test_offsets_narrow_the_ranges(filters: list[Filter], span: tuple[int, int]) -> None:
    assert {found[2:] for found in narrowed(*filters)} == {span}


def test_offsets_that_exclude_each_other_leave_nothing() -> None:
    assert narrowed(GreaterThan(("offset",), 5), LessThan(("offset",), 5)) == []


def test_a_list_of_offsets_is_read_from_its_first_to_its_last_and_looked_at_again() -> None:
    wanted = In(("offset",), (30, 10))
    found, left = push([wanted])
    assert left == [wanted]
    assert {(r.start, r.end) for r in found.narrow(RANGES)} == {(10, 31)}


def test_a_timestamp_moves_the_beginning_and_is_looked_at_again() -> None:
    early = GreaterThan(("timestamp",), datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))))
    late = GreaterThanOrEqual(("timestamp",), datetime(2026, 1, 1, 0, 0, 0, 1500, tzinfo=UTC))
    found, left = push([early, late, LessThan(("timestamp",), datetime(2027, 1, 1, tzinfo=UTC))])
    assert left[:2] == [early, late]
    assert len(left) == 3
    assert found.since_ms == int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1000 + 1


MOMENT = datetime(2026, 1, 1, 0, 0, 0, 1500, tzinfo=UTC)
MOMENT_MS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1000 + 1


@pytest.mark.parametrize(
    ("filters", "since_ms", "before_ms"),
    [
        ([LessThan(("timestamp",), MOMENT)], None, MOMENT_MS + 1),
        ([LessThan(("timestamp",), MOMENT.replace(microsecond=1000))], None, MOMENT_MS),
        ([LessThanOrEqual(("timestamp",), MOMENT.replace(microsecond=1000))], None, MOMENT_MS + 1),
        ([EqualTo(("timestamp",), MOMENT)], MOMENT_MS, MOMENT_MS + 1),
        (
            [LessThan(("timestamp",), MOMENT), LessThanOrEqual(("timestamp",), MOMENT.replace(year=2025))],
            None,
            int(MOMENT.replace(year=2025).timestamp() * 1000) + 1,
        ),
        ([GreaterThan(("timestamp",), MOMENT)], MOMENT_MS, None),
    ],
    ids=["before", "before a whole one", "until", "at", "two", "after"],
)
def test_a_latest_timestamp_is_known_to_the_millisecond_and_is_looked_at_again(
    filters: list[Filter], since_ms: int | None, before_ms: int | None
) -> None:
    found, left = push(filters)
    assert left == filters
    assert (found.since_ms, found.before_ms) == (since_ms, before_ms)


@pytest.mark.parametrize(
    "other",
    [
        IsNull(("key",)),
        IsNotNull(("value",)),
        EqualTo(("value",), b"x"),
        EqualTo(("offset",), "7"),
        EqualTo(("headers", "key"), 1),
        Not(EqualTo(("partition",), 1)),
        StringStartsWith(("topic",), "a"),
        GreaterThan(("topic",), "a"),
        In(("partition",), (1, None)),
        GreaterThan(("timestamp",), datetime(2026, 1, 1)),  # noqa: DTZ001
    ],
)
def test_everything_else_is_left_to_spark(other: Filter) -> None:
    found, left = push([other])
    assert left == [other]
    assert (found.since_ms, found.before_ms) == (None, None)
    assert len(found.narrow(RANGES)) == 6
