"""Inputs that are deleted and created again: the new topic is read from its start."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.groups import described, of_topic
from weir.connect.writer import delete_topic, ensure_topic
from weir.functions.subscriptions import Place, subscribe
from weir.model.definitions import Function
from weir.model.errors import FunctionError, TopicNotFoundError
from weir.spark.functions.query import FunctionReader, FunctionSource, source_options
from weir.spark.tables.names import WeirCluster

from .conftest import Bench
from .running import Runner

pytestmark = pytest.mark.process

ECHO = "def f(message): return message.text"
OLD, NEW = [f"old {number}" for number in range(5)], [f"new {number}" for number in range(8)]
STARTS = pytest.mark.parametrize("start", ["earliest", "latest"])


def create_again(bench: Bench, function: Function, *, create: bool = True) -> str:
    """The name of the topic."""
    (topic,) = function.inputs
    with Cluster(Place.find(bench.access).kafka) as cluster:
        delete_topic(cluster, topic.local)
        if create:
            ensure_topic(cluster, topic.local, 1)
    return topic.local


def results(bench: Bench, function: Function, many: int, step: Callable[[], object] | None = None) -> list[str]:
    found = bench.read(f"{function.name.local}-out", many, step=step, more=True)
    return [one.value().decode() for one in found]


@STARTS
@pytest.mark.parametrize("create", [True, False])
def test_while_the_function_is_stopped(bench: Bench, start: str, create: bool) -> None:
    function = bench.deploy(ECHO, start=start)
    before = bench.work(function)
    bench.produce(function.inputs[0], OLD)
    assert results(bench, function, 5, before.step) == OLD
    before.close()
    bench.produce(create_again(bench, function, create=create), NEW)
    assert results(bench, function, 13, bench.work(function).step) == [*OLD, *NEW]


@STARTS
def test_before_the_function_has_run_for_the_first_time(bench: Bench, start: str) -> None:
    function = bench.deploy(ECHO, start=start)
    bench.produce(create_again(bench, function), NEW)
    assert results(bench, function, 8, bench.work(function).step) == NEW


@STARTS
def test_while_the_function_runs(bench: Bench, start: str) -> None:
    """Its reader is at an offset that the new topic has, too."""
    function = bench.deploy(ECHO, start=start)
    before = bench.work(function)
    bench.produce(function.inputs[0], OLD)
    assert results(bench, function, 5, before.step) == OLD
    bench.produce(create_again(bench, function), NEW)
    with pytest.raises((TopicNotFoundError, FunctionError), match=r"deleted and created again|no such topic"):
        while True:
            before.step()
    before.close()
    assert results(bench, function, 13, bench.work(function).step) == [*OLD, *NEW]


def test_a_position_that_reaches_the_new_topic_late_is_not_taken_for_its_own(bench: Bench) -> None:
    """The messages of a batch were read before the topic was deleted, and are committed after that."""
    function = bench.deploy(ECHO, start="latest")
    before = bench.work(function)
    bench.produce(function.inputs[0], OLD)
    read = before._gather
    taken: list[bool] = []

    def gather(patience_s: float) -> list[object]:
        found = read(patience_s)
        if found and not taken:
            taken.append(True)
            bench.produce(create_again(bench, function), NEW)
            subscribe(bench.access, function)
        return list(found)

    before._gather = gather  # type: ignore[method-assign, assignment]
    while not taken:
        before.step()
    with Cluster(Place.find(bench.access).kafka) as cluster:
        (part,) = cluster.partitions([function.inputs[0].local])
        ((offset, said),) = described(cluster, function.subscription, [part]).values()
        assert offset > 0
        assert said != of_topic(cluster.topic_ids[part.topic])
    before.close()
    found = results(bench, function, offset + 8, bench.work(function).step)
    assert found == [*OLD[:offset], *NEW]


def test_a_runner_starts_the_function_again(bench: Bench, tmp_path: Path) -> None:
    function, runner = bench.deploy(ECHO, start="latest"), Runner(bench, tmp_path)
    runner.start()
    try:
        bench.produce(function.inputs[0], OLD)
        assert results(bench, function, 5) == OLD
        bench.produce(create_again(bench, function), NEW)
        assert results(bench, function, 13) == [*OLD, *NEW]
    finally:
        runner.end()


@pytest.fixture
def reader(bench: Bench) -> Iterator[Callable[[Function], FunctionReader]]:
    made: list[FunctionReader] = []

    def make(function: Function) -> FunctionReader:
        source = FunctionSource(source_options(WeirCluster.find(bench.access), function))
        made.append(source.streamReader(source.schema()))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.mark.spark
@STARTS
@pytest.mark.parametrize("stopped", [True, False])
def test_on_spark_by_the_ids_in_the_checkpoint(
    bench: Bench, reader: Callable[[Function], FunctionReader], start: str, stopped: bool
) -> None:
    function = bench.deploy(ECHO, start=start, on="spark")
    topic = function.inputs[0].local
    one = reader(function)
    bench.produce(topic, OLD)
    began = one.latestOffset(one.initialOffset(), one.getDefaultReadLimit())
    one.commit(began)
    bench.produce(create_again(bench, function), NEW)
    if stopped:
        subscribe(bench.access, function)  # as a worker does that begins
        one = reader(function)
    else:
        one.commit(began)  # late, and of the deleted topic
    end = one.latestOffset(began, one.getDefaultReadLimit())
    (piece,) = one.partitions(began, end)
    assert (piece.value.partition, piece.value.start, piece.value.end) == (Partition(topic, 0), 0, 8)
