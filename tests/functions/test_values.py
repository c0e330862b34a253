"""Messages of topics whose schema is KEY_VALUE or PROTOBUF: typed keys and values, both ways, and state by key."""

import io
import json
from base64 import b64encode
from struct import pack
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from weir.functions.executor_pool import Executors
from weir.functions.executor_protocol import Item, Out, SchemaVersion, Setup
from weir.functions.invocation import Calls
from weir.functions.values import LaterVersions, Values
from weir.model.errors import FunctionError, WireError
from weir.wire.schema_values import joined, split

IN, OUT = "persistent://public/default/orders", "persistent://public/default/clean"
RECORD = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]})
GROWN = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [{"name": "n", "type": "int"}, {"name": "m", "type": "int", "default": 7}],
    }
)
NUMBERS = [
    {"number": 1, "name": "item", "type": "STRING", "label": "LABEL_REQUIRED"},
    {"number": 2, "name": "count", "type": "INT32", "label": "LABEL_OPTIONAL"},
]
NUMBERED = SchemaVersion(0, "PROTOBUF", "{}", {"__PARSING_INFO__": json.dumps(NUMBERS)})
#: What protoc's code writes for item = "tea", count = 5.
TEA = b"\x0a\x03tea\x10\x05"


def native() -> str:
    proto = descriptor_pb2.FileDescriptorProto(name="a.proto", syntax="proto3")
    message = proto.message_type.add(name="A")
    message.field.add(name="item", number=1, label="LABEL_OPTIONAL", type="TYPE_STRING")
    message.field.add(name="count", number=2, label="LABEL_OPTIONAL", type="TYPE_INT32")
    files = descriptor_pb2.FileDescriptorSet(file=[proto]).SerializeToString()
    told = {"fileDescriptorSet": b64encode(files).decode(), "rootMessageTypeName": "A"}
    return json.dumps(told)


def key_value(
    key: tuple[str, str],
    value: tuple[str, str],
    encoding: str = "SEPARATED",
    *,
    version: int = 0,
    told: dict[str, str] | None = None,
) -> SchemaVersion:
    """As the registry tells it: types and definitions of keys and values."""
    properties = {"key.schema.type": key[0], "value.schema.type": value[0], "kv.encoding.type": encoding}
    if told is not None:
        properties["value.schema.properties"] = json.dumps(told)
    data = joined(key[1].encode(), value[1].encode())
    return SchemaVersion(version, "KEY_VALUE", b64encode(data).decode(), properties)


def avro(value: dict[str, int], definition: str = RECORD) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, json.loads(definition), value)
    return written.getvalue()


def setup(code: str, **changes: Any) -> Setup:
    settings: dict[str, Any] = {
        "name": "clean",
        "version": 1,
        "instance": 0,
        "code": code,
        "file": "f.py",
        "entry": "f",
        "output": OUT,
        "config": {},
        "stateful": False,
        "batch": None,
        "log_level": "INFO",
        "schemas": {},
    }
    return Setup(**settings | changes)


def item(value: bytes | None, key: bytes | None = None, **more: Any) -> Item:
    return Item(IN, 0, 5, key, value, more.pop("headers", []), 1000, **more)


def outs(code: str, *items: Item, **schemas: SchemaVersion) -> list[Out]:
    told = {topic: [schemas[name]] for name, topic in (("given", IN), ("gives", OUT)) if name in schemas}
    results, _ = Calls(setup(code, schemas=told)).run(items, {})
    assert [one.error for one in results if one.error is not None] == []
    return [out for one in results for out in one.outs]


@pytest.mark.parametrize("encoding", ["SEPARATED", "INLINE"])
def test_key_and_value_are_typed_wherever_they_lie_and_go_out_as_they_came(encoding: str) -> None:
    schema = key_value(("INT32", ""), ("AVRO", RECORD), encoding)
    key, value = pack(">i", 7), avro({"n": 3})
    came = item(value, key) if encoding == "SEPARATED" else item(joined(key, value))
    code = """
def f(message, context):
    assert (message.key, message.value, context.key) == (7, {"n": 3}, 7)
    return {"n": 4}
"""
    (out,) = outs(code, came, given=schema, gives=schema)
    changed = avro({"n": 4})
    assert (out.key, out.value) == (key, changed if encoding == "SEPARATED" else joined(key, changed))
    assert outs("def f(message): return message", came, given=schema, gives=schema)[0].value == came.value
    assert outs("def f(message): return message.data", came, given=schema, gives=schema)[0].value == came.value


def test_a_typed_key_becomes_text_where_the_output_has_no_schema_of_keys() -> None:
    schema = key_value(("INT32", ""), ("STRING", ""), "INLINE")
    (out,) = outs("def f(message): return message.value", item(joined(pack(">i", 7), b"x")), given=schema)
    assert (out.key, out.value) == (b"7", b"x")


def test_keys_and_values_that_are_null_stay_so() -> None:
    schema = key_value(("STRING", ""), ("JSON", "{}"), "INLINE")
    came = item(joined(None, None))
    code = "def f(message):\n    assert (message.key, message.value) == (None, None)\n    return message"
    assert outs(code, came, given=schema, gives=schema)[0].value == came.value
    code = "def f(message):\n    assert (message.key, message.value) == ('k', None)\n    return message"
    apart = key_value(("STRING", ""), ("JSON", "{}"))
    assert outs(code, item(None, b"k"), given=apart, gives=apart) == [Out(None, b"k", None, [], 1000)]


def test_each_version_of_a_key_value_schema_reads_what_it_wrote() -> None:
    versions = [
        key_value(("STRING", ""), ("AVRO", RECORD), version=0),
        key_value(("STRING", ""), ("AVRO", GROWN), version=1),
    ]
    values = Values(IN, versions)
    old = values.decode(b"k", avro({"n": 1}), [("weir-schema-version", b"0")])
    new = values.decode(b"k", avro({"n": 1, "m": 2}, GROWN), [("weir-schema-version", b"1")])
    assert (old, new) == (("k", {"n": 1, "m": 7}), ("k", {"n": 1, "m": 2}))
    assert values.unknown([("weir-schema-version", b"1")]) is None
    assert values.unknown([("weir-schema-version", b"2")]) == 2


def test_a_version_that_is_not_known_is_asked_for_and_not_with_every_message() -> None:
    now_s = [100.0]
    later = LaterVersions(lambda: now_s[0])
    values = {IN: Values(IN, [key_value(("STRING", ""), ("AVRO", RECORD))])}
    known, new, newer = (item(b"x", headers=[("weir-schema-version", b"%d" % at)]) for at in range(3))
    assert not later.wanted([known], values)
    assert later.wanted([known, new], values)
    assert not later.wanted([new], values)
    assert later.wanted([new, newer], values)
    now_s[0] += 60
    assert later.wanted([new], values)
    now_s[0] += 60
    assert not later.wanted([new], {IN: Values(IN, [SchemaVersion(0, "JSON", "{}")])})
    assert later.wanted([known], {IN: Values(IN)})  # the first one was registered meanwhile


def test_what_is_no_key_and_value_fails_alone() -> None:
    schema = key_value(("STRING", ""), ("JSON", "{}"), "INLINE")
    for wrong in (b"", b"\0\0\0\7abc", joined(b"k", b"{") + b"!", joined(b"k", b"{")):
        results, _ = Calls(setup("def f(message): ...", schemas={IN: [schema]})).run([item(wrong)], {})
        assert "does not fit the KEY_VALUE schema" in (results[0].error or "")
    with pytest.raises(FunctionError, match="does not fit the KEY_VALUE schema"):
        Values(OUT, [key_value(("INT32", ""), ("JSON", "{}"))]).encode("seven", {})


@given(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9))
def test_two_parts_come_back(key: bytes | None, value: bytes | None) -> None:
    assert split(joined(key, value)) == (key, value)
    with pytest.raises(WireError):
        split(joined(key, value)[:-1] if value else joined(key, value) + b"x")


def test_protobuf_is_read_and_written_by_the_numbers_that_the_schema_carries() -> None:
    code = "def f(message): return message.value | {'count': message.value['count'] + 1}"
    assert [one.value for one in outs(code, item(TEA), given=NUMBERED, gives=NUMBERED)] == [TEA[:-1] + b"\6"]
    assert [one.value for one in outs(code, item(TEA), given=NUMBERED)] == [b'{"item":"tea","count":6}']
    with pytest.raises(FunctionError, match="does not fit the PROTOBUF schema"):
        Values(OUT, [NUMBERED]).encode(None, {"nothing": 1})
    silent = SchemaVersion(0, "PROTOBUF", "{}")
    assert [one.value for one in outs("def f(m): return m.value", item(TEA), given=silent, gives=silent)] == [TEA]


@pytest.mark.parametrize(
    ("kind", "definition", "told"),
    [("PROTOBUF_NATIVE", native(), None), ("PROTOBUF", "{}", dict(NUMBERED.properties))],
)
def test_protobuf_can_be_the_value_of_a_key(kind: str, definition: str, told: dict[str, str] | None) -> None:
    schema = key_value(("STRING", ""), (kind, definition), "INLINE", told=told)
    code = "def f(message): return {'item': message.key, 'count': message.value['count']}"
    (out,) = outs(code, item(joined(b"tea", TEA)), given=schema, gives=schema)
    assert out.value == joined(b"tea", TEA)


COUNT = """
def f(message, context):
    context.state["n"] = context.state.get("n", 0) + 1
    return str(context.state["n"])
"""


@pytest.mark.process
def test_state_is_by_the_key_that_lies_in_the_value() -> None:
    schema = key_value(("STRING", ""), ("STRING", ""), "INLINE")
    given_ = [item(joined(key, b"x")) for key in (b"a", b"b", b"a", None)]
    executors = Executors(setup(COUNT, stateful=True, schemas={IN: [schema]}), 2)
    executors.start()
    try:
        found = executors.run(given_, {})
        assert [one.outs[0].value for one in found.results] == [b"1", b"1", b"2", b"1"]
        assert set(found.states) == {b"a", b"b", b""}
        assert executors.run(given_[:1], found.states).results[0].outs[0].value == b"3"
    finally:
        executors.close()


def test_batches_have_the_columns_of_the_value_and_its_key() -> None:
    schema = key_value(("STRING", ""), ("JSON", "{}"), "INLINE")
    code = "def f(batch): return batch.select(['key', 'n'])"
    came = [item(joined(b"a", b'{"n":1}')), item(joined(b"b", b'{"n":2}'))]
    assert [(one.key, one.value) for one in outs(code, *came, given=schema, gives=schema)] == [
        (b"a", came[0].value),
        (b"b", came[1].value),
    ]
