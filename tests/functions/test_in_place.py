"""A function over rows of a micro-batch, as Spark's tasks run it; without Spark."""

import json
from collections.abc import Callable, Iterator

import pytest

from weir.functions.executor_protocol import Item
from weir.functions.micro_batch import DEAD, LINE, SENT, InPlace, OutRow
from weir.functions.options import from_text
from weir.model.definitions import Function
from weir.model.topics import TopicName

pytestmark = pytest.mark.process

Made = Callable[..., tuple[InPlace, list[float]]]
ORDERS = "persistent://public/default/orders"
COUNT = """
def f(message, context):
    context.state["n"] = context.state.get("n", 0) + 1
    if message.data == b"bad" or (message.data == b"once" and message.attempt == 1):
        raise ValueError(message.text)
    print("saw", message.text)
    return f"{message.text} {context.state['n']}"
"""


@pytest.fixture
def function() -> Iterator[Made]:
    opened: list[InPlace] = []

    def make(code: str = COUNT, **options: str) -> tuple[InPlace, list[float]]:
        name, waits = TopicName.parse("clean"), []
        inputs = (TopicName.parse("orders"),)
        made = Function(name, "1", 1, code, "f.py", "f", inputs, TopicName.parse("out"), options)
        opened.append(InPlace(made, from_text(made.options), {}, sleep=waits.append))
        return opened[-1], waits

    yield make
    for one in opened:
        one.close()


def items(*values: bytes) -> list[Item]:
    return [Item(ORDERS, 0, at, b"k", value, [], 1000) for at, value in enumerate(values)]


def values(rows: list[OutRow], kind: str = SENT) -> list[bytes | None]:
    return [row.value for row in rows if row.kind == kind]


def test_what_fails_is_tried_again_in_rounds_and_is_a_dead_letter_at_last(function: Made) -> None:
    given, waits = function(stateful="true", retry="1s 10s", max_deliveries="3")
    rows, states = given.run(items(b"a", b"bad", b"once", b"b"), {})
    assert values(rows) == [b"a 1", b"b 2", b"once 3"]
    (letter,) = [row for row in rows if row.kind == DEAD]
    assert (letter.topic, letter.value) == ("orders-fn-clean-DLQ", b"bad")
    assert dict(letter.headers)["weir-dead-deliveries"] == b"3"
    assert waits == [1.0, 10.0]
    more, _ = given.run(items(b"c"), states)
    assert values(more) == [b"c 4"]


def test_in_order_each_message_waits_for_the_one_before_it(function: Made) -> None:
    given, waits = function(stateful="true", retry="1s", max_deliveries="3", ordered="true")
    rows, _ = given.run(items(b"once", b"b"), {})
    assert values(rows) == [b"once 1", b"b 2"]
    assert waits == [1.0]


def test_lines_go_to_the_log_topic_with_their_message(function: Made) -> None:
    given, _ = function(stateful="true", log_topic="ops", max_deliveries="1")
    rows, _ = given.run(items(b"a", b"bad"), {})
    lines = [json.loads(value or b"") for value in values(rows, LINE)]
    assert [(line["message"].partition(" (")[0], line["offset"]) for line in lines] == [
        ("saw a", 0),
        ("attempt 1 failed: ValueError: bad", 1),
    ]
    assert {row.topic for row in rows if row.kind == LINE} == {"ops"}


CRASH = """
import os, time
def f(message):
    if message.data == b"die":
        os._exit(7)
    if message.data == b"hang":
        time.sleep(60)
    return message
"""


def test_one_that_kills_its_process_or_hangs_fails_alone(function: Made) -> None:
    given, _ = function(CRASH, max_deliveries="1", timeout_s="4.0")
    rows, _ = given.run(items(b"a", b"die", b"b", b"hang", b"c"), {})
    assert values(rows) == [b"a", b"b", b"c"]
    errors = [dict(row.headers)["weir-dead-error"] for row in rows if row.kind == DEAD]
    assert errors == [b"the function's process ended with code 7", b"the function took longer than 4 s"]


def test_a_batch_has_as_many_messages_as_is_said(function: Made) -> None:
    code = "def f(batch):\n    return batch.from_pydict({'value': [str(batch.num_rows)]})"
    given, _ = function(code, batch_messages="2")
    rows, _ = given.run(items(b"a", b"b", b"c"), {})
    assert values(rows) == [b"2", b"1"]
