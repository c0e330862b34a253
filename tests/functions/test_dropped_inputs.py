"""Updates that drop an input: once the next version runs, its subscription is gone, and nothing else is."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulsar
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from weir.client import functions as rest
from weir.client.admin import Access, ask_v2, topic_path
from weir.functions import subscriptions as subscribing
from weir.functions.subscriptions import leave_dropped, subscribe
from weir.model.definitions import Function, FunctionWanted
from weir.model.errors import NotAllowedError, StaleEpochError
from weir.model.topics import TopicName

from .conftest import Bench
from .running import Runner, state_of, wait

pytestmark = pytest.mark.process

ECHO = "def f(message): return message.text"
AGAIN = "def f(message): return message.text + ' again'"


def kept_for(bench: Bench, function: Function) -> list[TopicName]:
    """Those of its inputs that have a subscription of it."""
    return [
        topic
        for topic in function.inputs
        if function.subscription in ask_v2(bench.access, "GET", topic_path(topic, "subscriptions"))
    ]


def without_last_input(bench: Bench, function: Function, **options: str) -> Function:
    return bench.update(replace(function, inputs=function.inputs[:-1]), AGAIN, **options)


def test_the_subscription_of_a_dropped_input_goes_once_the_next_version_has_taken_over(bench: Bench) -> None:
    function = bench.deploy(ECHO, inputs=2)
    first, dropped = (topic.local for topic in function.inputs)
    client = pulsar.Client(bench.up.pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    others = client.subscribe(dropped, "others", initial_position=pulsar.InitialPosition.Earliest)
    before = bench.work(function)
    for topic in (first, dropped):
        bench.produce(topic, ["1"])
    bench.read(f"{function.name.local}-out", 2, step=before.step)
    after = without_last_input(bench, function)
    assert kept_for(bench, function) == [*function.inputs]

    work = bench.work(after)
    assert kept_for(bench, function) == [*function.inputs[:1]]
    for topic in (dropped, first):
        bench.produce(topic, ["2"])
    with pytest.raises(StaleEpochError):
        while True:  # it has read them, but cannot move its position, which would make the subscription again
            before.step()
    found = bench.read(f"{function.name.local}-out", 3, step=work.step, more=True)
    assert [one.value() for one in found[2:]] == [b"2 again"]
    assert kept_for(bench, function) == [*function.inputs[:1]]
    assert [others.receive(60_000).data() for _ in range(2)] == [b"1", b"2"]
    client.close()


def test_an_input_that_comes_again_is_read_from_its_beginning(bench: Bench) -> None:
    function = bench.deploy(ECHO, inputs=2)
    dropped = function.inputs[1].local
    bench.produce(dropped, ["1"])
    bench.read(f"{function.name.local}-out", 1, step=bench.work(function).step)
    bench.work(without_last_input(bench, function))
    work = bench.work(bench.update(function, AGAIN))
    bench.produce(dropped, ["2"])
    found = bench.read(f"{function.name.local}-out", 3, step=work.step)
    assert [one.value() for one in found] == [b"1", b"1 again", b"2 again"]
    assert kept_for(bench, function) == [*function.inputs]


def test_a_worker_that_is_late_leaves_an_input_that_came_again_meanwhile(bench: Bench) -> None:
    function = bench.deploy(ECHO, inputs=2)
    late = without_last_input(bench, function)
    subscribe(bench.access, bench.update(function, AGAIN))
    bench.work(late)
    assert kept_for(bench, function) == [*function.inputs]


def test_a_function_of_the_same_name_as_a_deleted_one_takes_nothing_of_that_for_its_own(bench: Bench) -> None:
    gone = bench.deploy(ECHO, inputs=2)
    subscribe(bench.access, gone)
    rest.delete(bench.access, gone.name)  # by REST, which leaves its topics and subscriptions
    what = rest.Definition(ECHO, "f.py", "f", gone.inputs[:1], gone.output, {})
    function = rest.deploy(bench.access, gone.name, what).function
    subscribe(bench.access, function)
    leave_dropped(bench.access, function)
    assert kept_for(bench, gone) == [*gone.inputs]


def test_a_subscription_whose_removal_is_refused_is_removed_by_the_next_worker(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = bench.deploy(ECHO, inputs=2)
    after = without_last_input(bench, function)
    asked = subscribing.ask_v2

    def refusing(access: Access, verb: str, path: str, body: object = None) -> Any:
        if verb == "DELETE" and "/subscription/" in path:
            raise NotAllowedError("not now")
        return asked(access, verb, path, body)

    monkeypatch.setattr(subscribing, "ask_v2", refusing)
    leave_dropped(bench.access, after)
    monkeypatch.undo()
    assert kept_for(bench, function) == [*function.inputs]
    leave_dropped(bench.access, after)
    assert kept_for(bench, function) == [*function.inputs[:1]]


@pytest.fixture
def run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`weir functions ...` in this process."""
    from weir.cli.main import main

    monkeypatch.setenv("WEIR_URL", bench.up.http_url)

    def call(*arguments: str) -> None:
        with pytest.raises(SystemExit) as ended:
            main(["functions", *arguments])
        assert ended.value.code == 0

    return call


def deploy_by_command(bench: Bench, folder: Path, run: Callable[..., None]) -> Function:
    """Of NAME-in, and of NAME-many with three partitions."""
    name, file = bench.name(), folder / "f.py"
    file.write_text(ECHO)
    admin = AdminClient({"bootstrap.servers": bench.up.kafka, "log_level": 0})
    for made in admin.create_topics([NewTopic(f"{name}-many", 3)]).values():
        made.result(60)
    topics = ("--in", f"{name}-in", "--in", f"{name}-many", "--out", f"{name}-out")
    run("deploy", f"{file}:f", "--name", name, *topics)
    (found,) = [one.function for one in rest.all_functions(bench.access) if one.function.name.local == name]
    return found


def test_by_commands_a_partitioned_input_is_dropped_while_the_function_runs(
    bench: Bench, tmp_path: Path, run: Callable[..., None]
) -> None:
    function, runner = deploy_by_command(bench, tmp_path, run), Runner(bench, tmp_path)
    name = function.name.local
    bench.produce(f"{name}-many", ["1"])
    runner.start()
    try:
        bench.read(f"{name}-out", 1)
        assert kept_for(bench, function) == [*function.inputs]
        run("update", name, "--in", f"{name}-in")
        wait(lambda: kept_for(bench, function) == [*function.inputs[:1]], "its subscription stays")
        bench.produce(f"{name}-in", ["2"])
        assert [one.value() for one in bench.read(f"{name}-out", 2)] == [b"1", b"2"]
    finally:
        runner.end()
        run("delete", name)
    assert kept_for(bench, function) == []


def test_what_was_dropped_and_never_ran_again_goes_when_the_function_is_deleted(
    bench: Bench, tmp_path: Path, run: Callable[..., None]
) -> None:
    function = deploy_by_command(bench, tmp_path, run)
    name = function.name.local
    run("update", name, "--in", f"{name}-in")
    assert kept_for(bench, function) == [*function.inputs]
    run("delete", name)
    assert kept_for(bench, function) == []


def _batches(folder: Path) -> list[int]:
    """Those that a part of Spark's checkpoint names."""
    return sorted(int(one.name) for one in folder.iterdir() if one.name.isdigit())


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_on_spark_a_dropped_input_goes_and_a_batch_that_was_planned_with_it_is_finished(
    bench: Bench, tmp_path: Path
) -> None:
    variables = {"TMPDIR": str(tmp_path), "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={tmp_path} -XX:-UsePerfData"}
    folder = tmp_path / "checkpoints"
    runner = Runner(bench, tmp_path, "--checkpoints", str(folder), variables=variables)
    function = bench.deploy(ECHO, inputs=2, on="spark", master="local[2]")
    first, dropped = (topic.local for topic in function.inputs)
    output = f"{function.name.local}-out"
    runner.start()
    try:
        bench.produce(first, ["1"])
        bench.read(output, 1)
        bench.produce(dropped, ["2"])
        bench.read(output, 2)
        noted = [folder / function.id / name for name in ("offsets", "commits")]
        wait(lambda: _batches(noted[0]) == _batches(noted[1]), "the last batch is not finished")
        rest.want(bench.access, function.name, FunctionWanted.STOPPED)
        wait(lambda: state_of(bench, function) == "stopped", "it does not stop")
        (noted[1] / str(max(_batches(noted[1])))).unlink()  # as if it had been killed at the end of the batch
        assert kept_for(bench, function) == [*function.inputs]
        without_last_input(bench, function, on="spark", master="local[2]")
        bench.produce(dropped, ["3"])
        bench.produce(first, ["4"])
        rest.want(bench.access, function.name, FunctionWanted.RUNNING)
        found = bench.read(output, 3, more=True)
        assert [one.value() for one in found] == [b"1", b"2", b"4 again"]
        wait(lambda: state_of(bench, function) == "running", "it does not run")
        bench.produce(first, ["5"])
        assert bench.read(output, 4)[3].value() == b"5 again"
        assert kept_for(bench, function) == [*function.inputs[:1]]
    finally:
        runner.end()
