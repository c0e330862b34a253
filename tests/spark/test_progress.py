"""A query counts its batches and losses through restarts, in words that the broker understands."""

from weir.broker.api.stats import QueryProgress
from weir.broker.subscriptions.subscription_state import parse_progress
from weir.spark.source.query_subscription import Progress, Said, from_metadata


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


def test_what_tasks_find_lost_is_shown_at_once_and_counted_once_however_often_it_is_told() -> None:
    said = Said.parse(Progress(2, 30, 1.5, 5).metadata(retain=True))
    told = Said.parse(said.with_gap(10, 14).with_gap(20, 21).with_gap(10, 14).metadata())
    shown = parse_progress(told.metadata())
    assert shown == QueryProgress(2, 30, 1.5, 10, retain=True)
    assert (told.lost_by_tasks, told.progress.lost, told.retain) == (5, 5, True)
    assert from_metadata([(0, told.metadata())]) == Progress(2, 30, 1.5, 5)


def test_a_query_with_very_many_gaps_says_no_more_than_brokers_keep() -> None:
    said = Said()
    for at in range(2000):
        said = said.with_gap(10**15 + 2 * at, 10**15 + 2 * at + 1)
    assert len(said.metadata()) < 4096
    shown = parse_progress(said.metadata())
    assert shown is not None
    assert shown.lost == 2000
