"""A query counts its batches and losses through restarts, in words that the broker understands."""

from weir.broker.query_progress import QueryProgress, parse_progress
from weir.spark.progress import Progress, from_metadata


def test_the_broker_reads_what_a_query_tells() -> None:
    told = Progress().after((100, 4.0), 0).after((30, 0.0), 5)
    assert told == Progress(2, 30, 30_000.0, 5)
    assert parse_progress(told.metadata(retain=False)) == QueryProgress(2, 30, 30_000.0, 5)
    assert parse_progress(told.metadata(retain=True)) == QueryProgress(2, 30, 30_000.0, 5, retain=True)


def test_a_position_without_a_batch_changes_only_what_was_lost() -> None:
    assert Progress(2, 30, 1.5, 5).after(None, 2) == Progress(2, 30, 1.5, 7)


def test_a_restarted_query_goes_on_counting() -> None:
    told = [(5, Progress(2, 30, 1.5, 5).metadata(retain=False)), (0, Progress(1).metadata(retain=True))]
    assert from_metadata(told) == Progress(2, 30, 1.5, 5)
    assert from_metadata([(1, "spark"), (2, ""), (3, "[]"), (4, '{"batch": {}}')]) == Progress()
    assert from_metadata([]) == Progress()
