"""A worker's loop against a real broker: output, retries, dead letters, state, order, and each message once."""

import json
from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from weir.client.admin import ask_v2
from weir.functions.output import Committer
from weir.functions.worker import Work
from weir.model.errors import FunctionError, StaleEpochError
from weir.model.topics import TopicName
from weir.wire.schema_values import joined, split

from .conftest import Bench

pytestmark = pytest.mark.process

COUNT = """
def f(message, context):
    context.state["n"] = context.state.get("n", 0) + 1
    return f"{message.text} {context.state['n']}"
"""
FAIL_BAD = """
def f(message):
    if message.data == b"bad":
        raise ValueError("bad one")
    return message
"""


def values(messages: list[Any]) -> list[str]:
    return [message.value().decode() for message in messages]


def test_messages_of_all_inputs_go_through_the_function_to_its_output(bench: Bench) -> None:
    function = bench.deploy("def f(message): return message.text.upper()", inputs=2, parallelism="2")
    for topic, word in zip(function.inputs, ("a", "b"), strict=True):
        bench.produce(topic, [word, word + word], key=word)
    work = bench.work(function)
    found = bench.read(f"{function.name.local}-out", 4, step=work.step)
    assert sorted(values(found)) == ["A", "AA", "B", "BB"]
    assert {(one.key().decode(), one.value().decode().lower()[0]) for one in found} == {("a", "a"), ("b", "b")}
    assert (work.counts.received, work.counts.sent, work.counts.lag) == (4, 4, 0)


def test_what_fails_comes_again_as_scheduled_and_is_a_dead_letter_at_last(bench: Bench) -> None:
    function = bench.deploy(FAIL_BAD, retry="10ms", max_deliveries="3", log_topic="logs-of-dead")
    (topic,) = function.inputs
    bench.produce(topic, ["1", "bad", "2"], key="k")
    work = bench.work(function)
    letters = bench.read(f"{topic.local}-{function.subscription}-DLQ", 1, step=work.step)
    assert values(bench.read(f"{function.name.local}-out", 2)) == ["1", "2"]
    headers = {name: value.decode() for name, value in letters[0].headers()}
    assert letters[0].value() == b"bad"
    assert (headers["weir-dead-deliveries"], headers["weir-dead-offset"]) == ("3", "1")
    assert headers["weir-dead-error"] == "ValueError: bad one (f.py, line 4)"
    assert "weir-dead-partition" not in headers
    assert (work.counts.failed, work.counts.dead) == (3, 1)
    lines = [json.loads(one) for one in values(bench.read("logs-of-dead", 3))]
    assert [line["message"].split(":")[0] for line in lines] == [f"attempt {at} failed" for at in (1, 2, 3)]


def test_in_order_what_fails_holds_up_what_is_behind_it(bench: Bench) -> None:
    code = FAIL_BAD.replace('b"bad":', 'b"bad" and message.attempt < 3:')
    function = bench.deploy(code, retry="5ms", max_deliveries="5", ordered="true")
    bench.produce(function.inputs[0], ["1", "bad", "2", "3"])
    work = bench.work(function)
    assert values(bench.read(f"{function.name.local}-out", 4, step=work.step)) == ["1", "bad", "2", "3"]
    assert work.counts.failed == 2


def test_in_order_a_dead_letter_lets_the_others_pass(bench: Bench) -> None:
    function = bench.deploy(FAIL_BAD, retry="5ms", max_deliveries="2", ordered="true")
    bench.produce(function.inputs[0], ["1", "bad", "2"])
    work = bench.work(function)
    assert values(bench.read(f"{function.name.local}-out", 2, step=work.step)) == ["1", "2"]
    assert work.counts.dead == 1


def test_state_outlives_the_worker_and_an_update_goes_on_where_it_was(bench: Bench) -> None:
    function = bench.deploy(COUNT, stateful="true", parallelism="2")
    (topic,) = function.inputs
    bench.produce(topic, ["a", "b"], key="x")
    bench.produce(topic, ["c"], key="y")
    first = bench.work(function)
    out = f"{function.name.local}-out"
    assert sorted(values(bench.read(out, 3, step=first.step))) == ["a 1", "b 2", "c 1"]
    first.close()
    bench.produce(topic, ["d"], key="x")
    updated = bench.update(function, COUNT.replace("{message.text}", "new {message.text}"), stateful="true")
    assert updated.version == 2
    second = bench.work(updated)
    assert values(bench.read(out, 4, step=second.step))[3] == "new d 3"
    assert (second.counts.received, second.counts.state_keys) == (1, 2)


STEPS = ("before anything", "after sending", "after moving", "after the end")


def test_a_worker_that_dies_at_any_step_leaves_each_message_counted_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dead ones are not closed: each lies there with its open transaction, as after kill -9."""
    function = bench.deploy(COUNT, stateful="true", batch_messages="2")
    (topic,) = function.inputs
    bench.produce(topic, [str(at) for at in range(20)], key="k")
    dead: list[Work] = []
    for step in STEPS:
        work = bench.work(function)
        while not work.step():
            pass  # some are committed
        with monkeypatch.context() as patched, pytest.raises(KilledError):
            _die(patched, step)
            while True:
                work.step()
        dead.append(work)
    last = bench.work(function)
    for one in dead:  # they live, and believe to run still
        with pytest.raises(StaleEpochError):
            one._committer.commit({}, dict(one._positions))
    out = f"{function.name.local}-out"
    assert values(bench.read(out, 20, step=last.step)) == [f"{at} {at + 1}" for at in range(20)]
    bench.produce(topic, ["last"], key="k")
    assert values(bench.read(out, 21, step=last.step))[20] == "last 21"


class KilledError(Exception):
    pass


def _die(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    commit, move = Committer.commit, Committer._move

    def killed(*_: Any, **__: Any) -> None:
        raise KilledError

    def after(self: Committer, *given: Any) -> None:
        commit(self, *given)
        raise KilledError

    def moved(self: Committer, positions: Any) -> None:
        move(self, positions)
        raise KilledError

    def sent(self: Committer, _positions: Any) -> None:
        self._sender.flush()
        raise KilledError

    match step:
        case "before anything":
            monkeypatch.setattr(Committer, "commit", killed)
        case "after sending":
            monkeypatch.setattr(Committer, "_move", sent)
        case "after moving":
            monkeypatch.setattr(Committer, "_move", moved)
        case _:
            monkeypatch.setattr(Committer, "commit", after)


CRASH = """
import os, time
def f(message):
    if message.data == b"die":
        os._exit(7)
    if message.data == b"sleep":
        time.sleep(60)
    return message
"""


def test_a_function_that_kills_its_process_or_hangs_fails_alone(bench: Bench) -> None:
    function = bench.deploy(CRASH, max_deliveries="1", timeout_s="4.0")
    (topic,) = function.inputs
    bench.produce(topic, ["1", "die", "2", "sleep", "3"])
    work = bench.work(function)
    assert values(bench.read(f"{function.name.local}-out", 3, step=work.step)) == ["1", "2", "3"]
    letters = bench.read(f"{topic.local}-{function.subscription}-DLQ", 2)
    errors = {one.value(): dict(one.headers())["weir-dead-error"].decode() for one in letters}
    assert errors[b"die"] == "the function's process ended with code 7"
    assert "longer than 4 s" in errors[b"sleep"]


def test_aborted_messages_are_not_seen_and_new_partitions_are_read(bench: Bench, monkeypatch: Any) -> None:
    name = f"{bench.name()}-many"
    admin = AdminClient({"bootstrap.servers": bench.up.kafka, "log_level": 0})
    admin.create_topics([NewTopic(name, 2)])[name].result(30)
    function = bench.deploy("def f(message): return f'{message.partition} {message.text}'")
    function = replace(function, inputs=(TopicName.parse(name),))
    producer = Producer({"bootstrap.servers": bench.up.kafka, "transactional.id": name, "log_level": 0})
    producer.init_transactions(30)
    for word, end in (("undone", producer.abort_transaction), ("kept", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(name, word, partition=1)
        producer.flush(30)
        end(30)
    work = bench.work(function)
    out = f"{function.name.local}-out"
    assert values(bench.read(out, 1, step=work.step)) == ["1 kept"]
    admin.create_partitions([NewPartitions(name, 3)])[name].result(30)
    other = Producer({"bootstrap.servers": bench.up.kafka, "log_level": 0})
    other.list_topics(name, timeout=30)
    other.produce(name, "more", partition=2)
    assert other.flush(30) == 0
    monkeypatch.setattr("weir.functions.worker._PARTITIONS_S", 0.0)
    assert values(bench.read(out, 2, step=work.step)) == ["1 kept", "2 more"]


def test_code_that_cannot_be_loaded_is_told_before_anything_is_taken(bench: Bench) -> None:
    function = bench.deploy("raise RuntimeError('no')\ndef f(message): ...")
    work: Work = bench.work(function, open_it=False)
    with pytest.raises(FunctionError, match="RuntimeError: no"):
        work.open()


def test_keys_and_values_of_a_registered_schema_are_typed_both_ways(bench: Bench) -> None:
    """INLINE, as Pulsar's clients write them: key and value lie in the value, and state is by that key."""
    code = """
def f(message, context):
    context.state["sum"] = context.state.get("sum", 0) + message.value["n"]
    return {"n": context.state["sum"]}
"""
    function = bench.deploy(code, stateful="true", parallelism="2")
    (topic,) = function.inputs
    record = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
    body = {
        "type": "KEY_VALUE",
        "schema": b64encode(joined(b"", json.dumps(record).encode())).decode(),
        "properties": {"key.schema.type": "STRING", "value.schema.type": "JSON", "kv.encoding.type": "INLINE"},
    }
    assert function.output is not None
    for name in (topic.local, function.output.local):
        ask_v2(bench.access, "POST", f"schemas/public/default/{name}/schema", body)
    given = [("a", 1), ("b", 10), ("a", 2)]
    bench.produce(topic, [joined(key.encode(), b'{"n":%d}' % n) for key, n in given])
    work = bench.work(function)
    found = bench.read(function.output.local, 3, step=work.step)
    sums = [(b"a", b'{"n":1}'), (b"a", b'{"n":3}'), (b"b", b'{"n":10}')]
    assert sorted(split(one.value()) for one in found) == sums
    assert work.counts.state_keys == 2


def test_a_schema_that_is_registered_while_it_runs_is_read_by(bench: Bench) -> None:
    function = bench.deploy("def f(message): return str(message.value)")
    (topic,) = function.inputs
    work = bench.work(function)
    bench.produce(topic, ["plain"])
    assert values(bench.read(f"{function.name.local}-out", 1, step=work.step)) == ["b'plain'"]
    fields = [{"name": "n", "type": "int"}]
    producer = Producer({"bootstrap.servers": bench.up.kafka, "log_level": 0})
    written = [b"\x02", b"\x02\x04"]
    for version, value in enumerate(written):
        schema = json.dumps({"type": "record", "name": "R", "fields": fields})
        body = {"type": "AVRO", "schema": schema, "properties": {}}
        ask_v2(bench.access, "POST", f"schemas/public/default/{topic.local}/schema", body)
        producer.produce(topic.local, value, headers=[("weir-schema-version", str(version).encode())])
        assert producer.flush(30) == 0
        fields.append({"name": "m", "type": "int", "default": 7})
        found = values(bench.read(f"{function.name.local}-out", 2 + version, step=work.step))
        assert found[1 + version] == ("{'n': 1}", "{'n': 1, 'm': 2}")[version]
