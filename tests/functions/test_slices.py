"""Answers that come in good time: of many messages the first are answered, stored, and a stop is heard between."""

from typing import Any

import pytest

from weir.functions import invocation
from weir.functions.captured_output import Talk
from weir.functions.executor_pool import Executors
from weir.functions.executor_protocol import Item, Setup
from weir.functions.invocation import Calls
from weir.functions.options import from_text
from weir.functions.subscriptions import Place
from weir.functions.worker import Work

from .conftest import Bench

IN = "persistent://public/default/in"
#: So many lines are an answer; keys of which the numbers are told by state.
WORDY = """
def f(message, context):
    context.state["n"] = context.state.get("n", 0) + 1
    for at in range(600):
        print(at)
    return f"{message.text} {context.state['n']}"
"""


def setup(code: str, **changes: Any) -> Setup:
    settings: dict[str, Any] = {
        "name": "f",
        "version": 1,
        "instance": 0,
        "code": code,
        "file": "f.py",
        "entry": "f",
        "output": None,
        "config": {},
        "stateful": True,
        "batch": None,
        "log_level": "INFO",
        "schemas": {},
        "sliced": True,
    }
    return Setup(**settings | changes)


def items(count: int, keys: int = 1) -> list[Item]:
    return [Item(IN, 0, at, str(at % keys).encode(), str(at).encode(), [], 1000) for at in range(count)]


def test_an_answer_is_given_after_a_while_for_what_was_done_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invocation, "_SLICE_S", 0.0)
    code = "def f(message, context):\n    context.state[message.text] = 1"
    results, changed = Calls(setup(code)).run(items(5), {})
    assert len(results) == 1
    assert changed == {b"0": b"\x81\xa10\x01"}
    results, _ = Calls(setup(code, sliced=False)).run(items(5), {})
    assert len(results) == 5


def test_an_answer_has_about_so_many_bytes_and_lines() -> None:
    results, _ = Calls(setup("def f(message): return b'x' * 5_000_000")).run(items(20), {})
    assert len(results) == 7
    talk = Talk()
    talk.listen("INFO")
    results, _ = Calls(setup("def f(message): print(1)\n", stateful=False), talk).run(items(2_000), {})
    assert (len(results), len(talk.take())) == (500, 500)


def test_state_that_no_topic_could_keep_fails_the_message() -> None:
    code = "def f(message, context):\n    context.state['x'] = 'x' * (6_000_000 if message.text == '1' else 1)"
    results, changed = Calls(setup(code)).run(items(3), {})
    assert [one.error is None for one in results] == [True, False, True]
    assert "the state of a key has 6000008 bytes" in str(results[1].error)
    assert changed == {b"0": b"\x81\xa1x\xa1x"}


@pytest.mark.process
@pytest.mark.parametrize("count", [1, 3])
def test_processes_that_come_unequally_far_answer_for_the_first_and_count_each_once(count: int) -> None:
    executors = Executors(setup(WORDY), count)
    executors.start()
    left, states, found = items(30, keys=7), {}, []
    try:
        while left:
            outcome = executors.run(left, states)
            assert outcome.results
            left = left[len(outcome.results) :]
            found += [out.value.decode() for one in outcome.results for out in one.outs if out.value is not None]
            states |= outcome.states
    finally:
        executors.close()
    assert found == [f"{at} {1 + at // 7}" for at in range(30)]


@pytest.mark.process
def test_a_stop_is_heard_between_answers_and_the_next_worker_goes_on_there(bench: Bench) -> None:
    function = bench.deploy(WORDY, stateful="true", log_topic="")
    (topic,) = function.inputs
    bench.produce(topic, [str(at) for at in range(5)], key="k")
    place, options = Place.find(bench.access), from_text(function.options)
    first = Work(place, function, options, lambda: first.counts.received > 1)
    try:
        first.open()
        while first.counts.received < 2:
            first.step()
        assert (first.counts.received, first.counts.lag) == (2, 3)
    finally:
        first.close()
    work = bench.work(function)
    found = bench.read(f"{function.name.local}-out", 5, step=work.step, more=True)
    assert [one.value().decode() for one in found] == [f"{at} {at + 1}" for at in range(5)]
