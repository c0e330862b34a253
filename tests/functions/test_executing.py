"""Calls of a function: what it gets, what becomes of what it returns, its state, and what it says."""

import json
from typing import Any

import fastavro
import msgspec
import pytest

from weir.functions.captured_output import Talk
from weir.functions.executor_protocol import Item, Out, Result, SchemaVersion, Setup
from weir.functions.invocation import Calls

IN, OUT = "persistent://public/default/orders", "persistent://public/default/clean"
AVRO = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]})


def calls(code: str, talk: Talk | None = None, **changes: Any) -> Calls:
    settings: dict[str, Any] = {
        "name": "clean",
        "version": 3,
        "instance": 0,
        "code": code,
        "file": "f.py",
        "entry": "f",
        "output": OUT,
        "config": {"rate": "7"},
        "stateful": True,
        "batch": None,
        "log_level": "INFO",
        "schemas": {},
    }
    return Calls(Setup(**settings | changes), talk)


def item(value: bytes | None = b"x", key: bytes | None = b"k", offset: int = 5, **more: Any) -> Item:
    headers = more.pop("headers", [("h", b"1"), ("weir-schema-version", b"0")])
    return Item(IN, 0, offset, key, value, headers, 1000, **more)


def outs(code: str, *items: Item, **changes: Any) -> list[Out]:
    results, _ = calls(code, **changes).run(items or [item()], {})
    assert [one.error for one in results if one.error is not None] == []
    return [out for one in results for out in one.outs]


def test_a_value_keeps_key_headers_and_time_of_what_it_came_of() -> None:
    assert outs("def f(message): return message.value + b'!'") == [Out(None, b"k", b"x!", [("h", b"1")], 1000)]


@pytest.mark.parametrize("returned", ["message", "message.data", "Message(1, headers=message.headers)"])
def test_headers_that_are_null_or_there_twice_go_on_as_they_came(returned: str) -> None:
    came: list[tuple[str, bytes | None]] = [("x", b"1"), ("y", None), ("x", b"\xff"), ("weir-priority", b"3")]
    code = f"from weir.functions import Message\ndef f(message): return {returned}"
    (out,) = outs(code, item(headers=[*came, ("weir-deliver-at", b"7")]))
    assert sorted(out.headers, key=str) == sorted(came, key=str)
    code = "def f(message):\n    message.headers['x'] = 'new'\n    return message"
    (out,) = outs(code, item(headers=came))
    assert out.headers == [("x", b"new"), ("y", None), ("weir-priority", b"3")]


@pytest.mark.parametrize(
    ("returned", "values"),
    [
        ("None", []),
        ("'text'", [b"text"]),
        ("{'a': 1}", [b'{"a":1}']),
        ("7", [b"7"]),
        ("[1, None, b'two']", [b"1", b"two"]),
        ("(x for x in 'ab')", [b"a", b"b"]),
        ("letters()", [b"a", b"b"]),
        ("message", [b"x"]),
    ],
)
def test_what_is_returned_becomes_messages(returned: str, values: list[bytes]) -> None:
    code = f"def f(message): return {returned}\nasync def letters():\n    for x in 'ab':\n        yield x"
    assert [out.value for out in outs(code)] == values


UNFIT = """
import sys
from weir.functions import Message
class Mute(Exception):
    def __str__(self): raise RuntimeError
def f(message, context):
    context.state["n"] = context.state.get("n", 0) + 1
    if message.data == b"bad":
        %s
    return "good"
"""


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("sys.exit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise Mute", "Mute"),
        ("raise ValueError('\\udcff')", "ValueError: \\udcff"),
        ("return Message('x', headers={'a': 1})", "a header is 1"),
        ("return Message('x', headers={1: 'a'})", "a header is called 1"),
        ("return Message('x', timestamp_ms='now')", "timestamp_ms is 'now'"),
        ("return Message('x', topic='a/b')", "is not a topic name"),
        ("return Message('x', topic='non-persistent://public/default/a')", "is not a whole, persistent topic"),
        ("return Message('x', topic='a-partition-1')", "is not a whole, persistent topic"),
        ("return 'x' * 6_000_000", "bytes is returned; 5226496 is the most"),
        ("return Message('x', headers={'h': 'x' * 6_000_000})", "bytes is returned; 5226496 is the most"),
        ("return {1, 2}", "TypeError: Object of type set is not JSON serializable"),
    ],
)
def test_what_cannot_be_sent_fails_alone_and_changes_no_state(bad: str, why: str) -> None:
    given = [item(b"1"), item(b"bad"), item(b"2")]
    results, changed = calls(UNFIT % bad).run(given, {})
    msgspec.msgpack.encode(results)  # what comes of it can be told to the worker
    assert [one.outs[0].value if one.outs else None for one in results] == [b"good", None, b"good"]
    assert why in (results[1].error or "")
    assert msgspec.msgpack.decode(changed[b"k"] or b"") == {"n": 2}


def test_of_a_batch_with_a_message_that_is_too_large_the_others_are_sent() -> None:
    code = """
def f(batch):
    return batch.from_pydict({"value": [b"x" * int(value) for value in batch["value"].to_pylist()]})
"""
    given = [item(str(size).encode()) for size in (1, 2, 6_000_000, 3)]
    results, _ = calls(code, stateful=False).run(given, {})
    assert sorted(len(out.value or b"") for one in results for out in one.outs) == [1, 2, 3]
    assert [one.error is None for one in results] == [True, True, False, True]


def test_a_topic_without_a_namespace_is_in_the_functions() -> None:
    code = "from weir.functions import Message\ndef f(message): return Message('x', topic='audit')"
    assert [out.topic for out in outs(code, namespace="sales/eu")] == ["persistent://sales/eu/audit"]


def test_a_message_says_itself_where_it_goes_and_the_one_that_came_goes_to_the_output() -> None:
    code = """
from dataclasses import replace
from weir.functions import Message
def f(message, context):
    context.send("first", topic="audit", key="a")
    assert (message.topic, message.offset, message.attempt, message.headers["h"]) == (%r, 5, 2, "1")
    other = Message("b", key=b"raw", topic="public/other/t", headers={"x": "y"}, timestamp_ms=5)
    return [other, replace(message, value="c")]
"""
    found = outs(code % IN, item(attempt=2))
    assert [(out.topic, out.key, out.value, out.headers, out.timestamp) for out in found] == [
        ("persistent://public/default/audit", b"a", b"first", [], 1000),
        ("persistent://public/other/t", b"raw", b"b", [("x", b"y")], 5),
        (None, b"k", b"c", [("h", b"1")], 1000),
    ]


def test_coroutines_are_awaited_and_the_context_tells_the_configuration() -> None:
    code = "async def f(message, context): return f'{context.name} {context.version} {context.config[\"rate\"]}'"
    assert [out.value for out in outs(code)] == [b"clean 3 7"]


COUNT = """
def f(message, context):
    context.state["n"] = context.state.get("n", 0) + 1
    if message.data == b"bad":
        raise ValueError("bad one")
    if message.data == b"forget":
        del context.state["n"]
    return str(context.state.get("n"))
"""


def test_state_is_by_key_and_what_fails_changes_nothing() -> None:
    function = calls(COUNT)
    given = [item(b"1", b"a"), item(b"bad", b"a"), item(b"2", b"a"), item(b"1", b"b"), item(b"1", None)]
    results, changed = function.run(given, {})
    assert [one.outs[0].value if one.outs else one.error for one in results] == [
        b"1",
        "ValueError: bad one (f.py, line 5)",
        b"2",
        b"1",
        b"1",
    ]
    assert set(changed) == {b"a", b"b", b""}
    results, after = function.run([item(b"3", b"a")], changed)
    assert results[0].outs[0].value == b"3"
    _, gone = function.run([item(b"forget", b"a")], after)
    assert gone == {b"a": None}
    _, none = function.run([item(b"bad", b"a")], after)
    assert none == {}


def test_without_state_it_says_how_to_get_it() -> None:
    results, _ = calls(COUNT, stateful=False).run([item()], {})
    assert "deployed without state" in (results[0].error or "")


def test_values_are_typed_by_the_schemas_of_their_topics() -> None:
    import io

    written = io.BytesIO()
    fastavro.schemaless_writer(written, json.loads(AVRO), {"id": 7})
    schemas = {
        IN: [SchemaVersion(0, "AVRO", AVRO)],
        OUT: [SchemaVersion(0, "JSON", "{}")],
    }
    code = "def f(message): return {'id': message.value['id'] + 1}"
    assert [out.value for out in outs(code, item(written.getvalue()), schemas=schemas)] == [b'{"id":8}']
    back = {IN: [SchemaVersion(0, "JSON", "{}")], OUT: [SchemaVersion(0, "AVRO", AVRO)]}
    (out,) = outs("def f(message): return message.value", item(b'{"id": 7}'), schemas=back)
    assert out.value == written.getvalue()
    results, _ = calls("def f(message): return {'id': 'no'}", schemas=back).run([item(b'{"id": 7}')], {})
    assert "does not fit the AVRO schema" in (results[0].error or "")
    results, _ = calls("def f(message): ...", schemas=back).run([item(b"{")], {})
    assert "does not fit the JSON schema" in (results[0].error or "")


@pytest.mark.parametrize(
    ("kind", "value", "raw"), [("INT32", 7, b"\0\0\0\7"), ("STRING", "é", b"\xc3\xa9"), ("BOOLEAN", True, b"\1")]
)
def test_plain_schemas_are_numbers_and_texts(kind: str, value: object, raw: bytes) -> None:
    schemas = {IN: [SchemaVersion(0, kind, "")], OUT: [SchemaVersion(0, kind, "")]}
    code = f"def f(message):\n    assert message.value == {value!r}\n    return message.value"
    assert [out.value for out in outs(code, item(raw), schemas=schemas)] == [raw]


def test_a_function_of_batches_gets_all_at_once_and_its_rows_become_messages() -> None:
    code = """
import pyarrow as pa
import pyarrow.compute as pc
def f(batch: pa.RecordBatch):
    return pa.record_batch({"key": batch["key"], "value": pc.binary_join_element_wise(batch["value"], b"!", b"")})
"""
    found = outs(code, item(b"a"), item(b"b", offset=6), stateful=False)
    assert [(out.key, out.value, out.topic) for out in found] == [(b"k", b"a!", None), (b"k", b"b!", None)]


def test_typed_columns_of_a_batch_come_and_go_as_objects() -> None:
    code = "def f(batch): return batch.select(['key', 'topic', 'offset', 'id'])"
    schemas = {IN: [SchemaVersion(0, "JSON", "{}")]}
    found = outs(code, item(b'{"id": 1}'), item(b'{"id": 2}', offset=6), schemas=schemas, stateful=False)
    assert [(out.value, out.topic) for out in found] == [(b'{"id":1}', None), (b'{"id":2}', None)]


def test_of_a_batch_that_fails_only_the_message_fails_that_it_fails_at() -> None:
    code = """
def f(batch):
    if b"bad" in batch["value"].to_pylist():
        raise ValueError("bad")
    return batch.select(["value"])
"""
    results, _ = calls(code, stateful=False).run(
        [item(one, offset=at) for at, one in enumerate((b"1", b"bad", b"3"))], {}
    )
    assert [one.error is not None for one in results] == [False, True, False]
    assert [out.value for one in results for out in one.outs] == [b"1", b"3"]


def test_prints_and_logs_are_told_with_the_message_that_they_are_about(capfd: pytest.CaptureFixture[str]) -> None:
    import logging
    import sys

    root, kept = logging.getLogger(), (sys.stdout, sys.stderr, logging.getLogger().handlers)
    talk = Talk()
    talk.listen("INFO")
    try:
        code = "import logging\ndef f(message):\n    print('a', 1)\n    logging.getLogger('x').info('b')\n"
        code += "    print('c', end='')"
        assert calls(code, talk).run([item()], {})[0] == [Result()]
        sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr, root.handlers = kept
    lines = talk.take()
    assert [(one.level, one.logger, one.text) for one in lines] == [
        ("INFO", "stdout", "a 1"),
        ("INFO", "x", "b"),
        ("INFO", "stdout", "c"),
    ]
    assert [(one.topic, one.offset) for one in lines[:2]] == [(IN, 5), (IN, 5)]
    assert talk.take() == []
