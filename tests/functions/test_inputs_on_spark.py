"""Where a function's stream on Spark begins, and what it forgets: its reader is asked as Spark would."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from weir.client.kafka.cluster import Partition
from weir.functions.subscriptions import leave_dropped, subscribe
from weir.model.definitions import Function
from weir.model.errors import FunctionError
from weir.model.topics import TopicName
from weir.spark.functions.query import FunctionReader, FunctionSource, source_options
from weir.spark.functions.worker import serve
from weir.spark.options import from_json, to_json
from weir.spark.source.streaming import Json
from weir.spark.tables.names import WeirCluster

from .conftest import Bench
from .test_dropped_inputs import kept_for

pytestmark = [pytest.mark.process, pytest.mark.spark]

ECHO = "def f(message): return message.text"


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


def read(reader: FunctionReader, start: Json) -> tuple[list[tuple[str, int, int]], Json]:
    """What a micro-batch after `start` reads, and the offsets where it ends."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    found = [piece.value for piece in reader.partitions(start, end)]
    return sorted((one.partition.topic, one.start, one.end) for one in found), to_json(from_json(end))


def test_what_comes_between_deploying_and_running_is_read(
    bench: Bench, reader: Callable[[Function], FunctionReader]
) -> None:
    function = bench.deploy(ECHO, start="latest", on="spark")
    (topic,) = function.inputs
    bench.produce(topic, ["new"])
    one = reader(function)
    assert from_json(one.initialOffset()) == {Partition(topic.local, 0): 0}
    assert read(one, one.initialOffset()) == ([(topic.local, 0, 1)], {topic.local: {"0": 1}})


def test_an_input_that_an_update_adds_is_read_from_where_it_was_subscribed(
    bench: Bench, reader: Callable[[Function], FunctionReader]
) -> None:
    function = bench.deploy(ECHO, start="latest", on="spark")
    (first,) = function.inputs
    added = TopicName(first.namespace, f"{first.local}-added")
    bench.produce(added, ["old"])
    after = bench.update(replace(function, inputs=(first, added)), ECHO, **function.options)
    subscribe(bench.access, after)
    bench.produce(added, ["new", "newer"])
    found, end = read(reader(after), {first.local: {"0": 0}})
    assert (found, end) == ([(added.local, 1, 3)], {first.local: {"0": 0}, added.local: {"0": 3}})


def test_an_input_that_an_update_drops_is_no_loss_and_is_not_subscribed_again(
    bench: Bench, reader: Callable[[Function], FunctionReader]
) -> None:
    function = bench.deploy(ECHO, inputs=2, on="spark")
    first, dropped = function.inputs
    for topic in function.inputs:
        bench.produce(topic, ["1", "2"])
    after = bench.update(replace(function, inputs=(first,)), ECHO, **function.options)
    leave_dropped(bench.access, after)
    one, began = reader(after), {first.local: {"0": 1}, dropped.local: {"0": 1}}
    planned_before = {first.local: {"0": 1}, dropped.local: {"0": 2}}
    assert [piece.value.partition.topic for piece in one.partitions(began, planned_before)] == [dropped.local]
    one.commit(planned_before)
    assert read(one, planned_before) == ([(first.local, 1, 2)], {first.local: {"0": 2}})
    assert kept_for(bench, function) == [first]


def test_code_that_cannot_be_loaded_is_told_before_there_is_a_spark(bench: Bench, tmp_path: Path) -> None:
    function = bench.deploy("import nosuchlib\ndef f(message): return message", on="spark")
    with pytest.raises(FunctionError, match=r"f\.py cannot be loaded: ModuleNotFoundError: .*nosuchlib"):
        serve(bench.access, function.name, kafka=None, folder=tmp_path, restarts=0, stopped=[])
