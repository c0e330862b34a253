"""What a stream's sink has ready for its next task, without Spark: one producer each, and no stale word."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from weir.client.kafka.cluster import open_transactions
from weir.client.sink_epochs import commit_epoch
from weir.model.errors import WeirError
from weir.spark import sink as readiness
from weir.spark.options import SinkOptions, parse_sink
from weir.spark.sink import BatchWriter, access_of, sweep, write_rows

from .conftest import Topics
from .sql_session import stored

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]


@pytest.fixture(autouse=True)
def _nothing_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_ready", {})
    monkeypatch.setattr(readiness, "_counts", {})


def options_of(topics: Topics, topic: str) -> SinkOptions:
    return parse_sink({"kafka.bootstrap.servers": topics.servers, "topic": topic})


def rows(*values: bytes) -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch([pa.array(values, pa.binary())], names=["value"])])


def test_what_is_ready_is_for_one_task_alone_and_the_next_one_gets_another(topics: Topics) -> None:
    topic = topics.create()
    options = options_of(topics, topic)
    readiness.prepare(options, "ready").join()
    used = []
    for epoch in range(3):
        written = write_rows(options, "ready", rows(b"%d" % epoch), again=True)
        assert written.transaction is not None
        used.append(written.transaction.transactional_id)
        assert commit_epoch(access_of(options), "ready", epoch, [written.transaction]).committed
    assert len(set(used)) == 3
    assert [value for _, value in stored(topics.servers, topic)] == ["0", "1", "2"]
    with topics.cluster() as cluster:
        assert open_transactions(cluster, f"{readiness.PREFIX}ready/") == []


def test_a_task_without_rows_leaves_it_to_the_next(topics: Topics) -> None:
    options = options_of(topics, topics.create())
    readiness.prepare(options, "empty").join()
    assert write_rows(options, "empty", iter(()), again=True).transaction is None
    found = readiness.take(options, "empty")
    assert found is not None
    assert readiness.take(options, "empty") is None, "it is somebody's now"
    assert readiness.take(options, "another") is None


def test_one_that_waited_for_long_is_not_used(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of(topics, topics.create())
    readiness.prepare(options, "old").join()
    monkeypatch.setattr(readiness, "_READY_S", 0.0)
    assert readiness.take(options, "old") is None


def test_partitions_are_counted_anew_after_a_moment_and_after_a_failure(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create()
    monkeypatch.setattr(readiness, "_COUNTED_S", 3600.0)
    with topics.cluster() as cluster:
        assert readiness.partition_count(cluster, topic) == 1
        topics.grow(topic, 3)
        assert readiness.partition_count(cluster, topic) == 1
        readiness.forget_counts(cluster.settings)
        assert readiness.partition_count(cluster, topic) == 3
        topics.grow(topic, 4)
        monkeypatch.setattr(readiness, "_COUNTED_S", 0.0)
        assert readiness.partition_count(cluster, topic) == 4


def test_the_abort_of_a_write_leaves_another_write_of_the_same_epoch_alone(topics: Topics) -> None:
    """A client is killed while Spark writes for it, and another one begins the same epoch before Spark has aborted
    the first: the sweep after the abort must not end the transactions of the second."""
    topic = topics.create()
    given = {"kafka.bootstrap.servers": topics.servers, "topic": topic, "sinkId": "twice", "sinkEpoch": "0"}
    killed, resumed = (BatchWriter(parse_sink(given)) for _ in range(2))
    first, second = killed.write(rows(b"first")), resumed.write(rows(b"second"))
    killed.abort([None])  # the driver has not heard of the task, and has to find its transaction
    with topics.cluster() as cluster:
        assert second.transaction is not None
        assert open_transactions(cluster, f"{readiness.PREFIX}twice/") == [second.transaction.transactional_id]
    resumed.commit([second])
    assert first.transaction is not None
    assert [value for _, value in stored(topics.servers, topic)] == ["second"]


def test_a_write_whose_transactions_another_one_has_ended_fails_and_can_be_done_again(topics: Topics) -> None:
    """What `weir replay resume` met after a kill, step by step: the sweep of the killed attempt took over the
    transactional ids of the resumed one, whose driver then asked for the commit."""
    topic = topics.create()
    given = {"kafka.bootstrap.servers": topics.servers, "topic": topic, "sinkId": "swept", "sinkEpoch": "0"}
    options = parse_sink(given)
    killed, resumed, again = (BatchWriter(options) for _ in range(3))
    killed.write(rows(b"killed"))
    second = resumed.write(rows(b"second"))
    sweep(options, "swept", ())  # of the whole sink, as the abort did it before
    with pytest.raises(WeirError, match="is at epoch 2, the producer at 0"):
        resumed.commit([second])
    resumed.abort([second])
    again.commit([again.write(rows(b"again"))])
    assert [value for _, value in stored(topics.servers, topic)] == ["again"]
    with topics.cluster() as cluster:
        assert open_transactions(cluster, f"{readiness.PREFIX}swept/") == []


def test_a_write_that_commits_first_ends_the_other_one_of_its_epoch_and_its_rows_count(topics: Topics) -> None:
    """The driver of the killed client commits while the resumed one writes: `resume` then finds its rows."""
    topic = topics.create()
    given = {"kafka.bootstrap.servers": topics.servers, "topic": topic, "sinkId": "raced", "sinkEpoch": "0"}
    killed, resumed = (BatchWriter(parse_sink(given)) for _ in range(2))
    first, second = killed.write(rows(b"first")), resumed.write(rows(b"second"))
    killed.commit([first])
    resumed.commit([second])
    assert [value for _, value in stored(topics.servers, topic)] == ["first"]
    with topics.cluster() as cluster:
        assert open_transactions(cluster, f"{readiness.PREFIX}raced/") == []
