"""Messages that a worker could stumble over for ever: what is refused, lies about itself, or hangs fails alone."""

import os
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from weir.client.admin import ask_v2, topic_path
from weir.functions.executor_pool import Executors
from weir.functions.executor_protocol import Item, Setup
from weir.model.topics import TopicName

from .conftest import Bench
from .running import descendants, kill, lives, wait

IN = "persistent://public/default/in"


def letters_of(bench: Bench, topic: str, subscription: str, many: int = 1) -> dict[str, str]:
    found = bench.read(f"{topic}-{subscription}-DLQ", many)
    return {one.value().decode(): dict(one.headers())["weir-dead-error"].decode() for one in found}


REFUSED = """
from weir.functions import Message
def f(message, context):
    context.state["n"] = context.state.get("n", 0) + 1
    headers = {"weir-deliver-after": "soon"} if message.text == "when" else {}
    topic = "nowhere/at-all/t" if message.text == "where" else None
    return Message(f"{message.text} {context.state['n']}", key=message.key, headers=headers, topic=topic)
"""


@pytest.mark.process
@pytest.mark.parametrize("ordered", ["true", "false"])
def test_what_the_broker_refuses_is_a_failure_of_the_message_that_it_came_of(bench: Bench, ordered: str) -> None:
    function = bench.deploy(REFUSED, stateful="true", retry="1ms", max_deliveries="2", ordered=ordered)
    (topic,) = function.inputs
    bench.produce(topic, ["1", "when", "2", "where", "3"], key="k")
    work = bench.work(function)
    found = bench.read(f"{function.name.local}-out", 3, step=work.step)
    assert [one.value() for one in found] == [b"1 1", b"2 2", b"3 3"]
    while work.counts.dead < 2:
        work.step()
    errors = letters_of(bench, topic.local, function.subscription, 2)
    assert "milliseconds in decimal digits" in errors["when"]
    assert "nowhere" in errors["where"]


@pytest.mark.process
def test_headers_that_look_like_ours_are_the_producers_and_a_delay_is_not_handed_on(bench: Bench) -> None:
    code = "def f(message):\n    if message.text == 'bad':\n        raise ValueError(message.attempt)\n"
    code += "    return message"
    function = bench.deploy(code, retry="1ms", max_deliveries="2")
    (topic,) = function.inputs
    lies = [("weir-fn-topic", b"//"), ("weir-fn-offset", b"x"), ("weir-fn-attempt", b"9")]
    producer = Producer({"bootstrap.servers": bench.up.kafka, "log_level": 0})
    producer.produce(topic.local, "good", headers=lies)
    producer.produce(topic.local, "bad", headers=[*lies, ("weir-deliver-at", str(time.time_ns() // 1_000_000))])
    producer.produce(function.retry_topic.local, "by hand")
    assert producer.flush(30) == 0
    work = bench.work(function)
    found = bench.read(f"{function.name.local}-out", 2, step=work.step)
    assert sorted(one.value() for one in found) == [b"by hand", b"good"]
    while not work.counts.dead:
        work.step()
    assert letters_of(bench, topic.local, function.subscription) == {"bad": "ValueError: 2 (f.py, line 3)"}


ELSEWHERE = """
from weir.functions import Message
def f(message): return Message(message.text, topic=f"{message.key}") if message.key else message.text
"""


@pytest.mark.process
def test_a_topic_of_its_own_choice_that_takes_nothing_more_fails_the_message_and_not_the_worker(
    bench: Bench,
) -> None:
    function = bench.deploy(ELSEWHERE, max_deliveries="1")
    (topic,) = function.inputs
    other = f"{function.name.local}-other"
    bench.produce(other, ["first"])
    ask_v2(bench.access, "POST", topic_path(TopicName.parse(f"{other}-partition-0"), "terminate"))
    bench.produce(topic, ["1"])
    bench.produce(topic, ["2"], key=other)
    bench.produce(topic, ["3"])
    work = bench.work(function)
    found = bench.read(f"{function.name.local}-out", 2, step=work.step)
    assert [one.value() for one in found] == [b"1", b"3"]
    assert "is terminated" in letters_of(bench, topic.local, function.subscription)["2"]


GROWS = """
def f(message, context):
    if message.key == "fails":
        raise ValueError(len(message.data))
    context.state["all"] = b"x" * len(message.data)
"""


@pytest.mark.process
def test_what_is_larger_than_a_message_may_be_fails_and_is_put_by(bench: Bench) -> None:
    function = bench.deploy(GROWS, stateful="true", retry="1ms", max_deliveries="2")
    (topic,) = function.inputs
    settings = {"bootstrap.servers": bench.up.kafka, "log_level": 0, "message.max.bytes": 20_000_000}
    producer = Producer({**settings, "compression.type": "zstd"})
    for key in ("fails", "state"):  # within what a broker takes, as they come
        producer.produce(topic.local, b"x" * 12_000_000, key=key)
    assert producer.flush(60) == 0
    work = bench.work(function)
    while work.counts.dead < 2:
        work.step()
    found = bench.read(f"{topic.local}-{function.subscription}-DLQ", 2)
    errors = {one.key().decode(): dict(one.headers())["weir-dead-error"].decode() for one in found}
    assert errors["fails"].startswith("ValueError: 12000000")
    assert "the state of a key has 12000010 bytes" in errors["state"]
    assert [len(one.value()) for one in found] == [12_000_000] * 2


def setup(code: str, timeout_s: float) -> Setup:
    return Setup(
        name="f",
        version=1,
        instance=0,
        code=code,
        file="f.py",
        entry="f",
        output=None,
        config={},
        stateful=False,
        batch=None,
        log_level="INFO",
        schemas={},
        timeout_s=timeout_s,
    )


def items(*values: bytes) -> list[Item]:
    return [Item(IN, 0, at, None, value, [], 1000) for at, value in enumerate(values)]


HANGS = """
import time
def f(message):
    while message.data == b"hang":
        time.sleep(1)
    return message
"""


@pytest.mark.process
@pytest.mark.timeout(60)
def test_one_of_a_thousand_that_hangs_is_found_by_its_own_time_and_not_by_that_of_all() -> None:
    executors = Executors(setup(HANGS, 4.0), 1, timeout_s=4.0)  # the others are never as slow, on whatever machine
    executors.start()
    try:
        outcome = executors.run(items(*[b"good"] * 500, b"hang", *[b"good"] * 499), {})
    finally:
        executors.close()
    assert [at for at, one in enumerate(outcome.results) if one.error is not None] == [500]
    assert outcome.results[500].error == "the function took longer than 4 s"


SLOW = "import time\ndef f(message):\n    time.sleep(0.3)\n    return message"


@pytest.mark.process
def test_many_that_take_their_time_are_no_hang() -> None:
    executors = Executors(setup(SLOW, 30.0), 1, timeout_s=30.0)
    executors.start()
    (pid,) = (pid for pid, command in descendants(os.getpid()) if "weir.functions.executor_process" in command)
    try:
        outcome = executors.run(items(*[b"x"] * 12), {})
        assert [one.error for one in outcome.results] == [None] * 12
        assert lives(pid)
    finally:
        executors.close()


LEAVES_ONE = """
import os, time
def f(message):
    if os.fork():
        os._exit(3)
    time.sleep(3600)
"""


@pytest.mark.process
def test_a_process_that_dies_while_one_of_its_own_holds_the_pipe_is_seen_to_be_dead(tmp_path: Path) -> None:
    left = tmp_path / "left"
    begun = f"    open('{left}.new', 'w').write(str(os.getpid()))\n    os.rename('{left}.new', '{left}')\n"
    code = LEAVES_ONE.replace("    time.sleep", f"{begun}    time.sleep")
    executors = Executors(setup(code, 0.0), 1)
    executors.start()
    try:
        outcome = executors.run(items(b"x"), {})
        assert outcome.results[0].error == "the function's process ended with code 3"
    finally:
        executors.close()
        wait(left.exists, "it has not begun")
        kill(int(left.read_text()))
