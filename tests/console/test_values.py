"""Values of every kind of schema as text for people, and back."""

import json
import struct
from base64 import b64encode

import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from weir.console.message_values import ValueSchema, decode, encode, plain, show

AVRO = b'{"type":"record","name":"A","fields":[{"name":"a","type":"int"},{"name":"b","type":["null","string"]}]}'


def protobuf() -> ValueSchema:
    proto = descriptor_pb2.FileDescriptorProto(name="a.proto", syntax="proto3")
    message = proto.message_type.add(name="A")
    message.field.add(name="item", number=1, label="LABEL_OPTIONAL", type="TYPE_STRING")
    message.field.add(name="count", number=2, label="LABEL_OPTIONAL", type="TYPE_INT32")
    files = descriptor_pb2.FileDescriptorSet(file=[proto]).SerializeToString()
    told = {
        "fileDescriptorSet": b64encode(files).decode(),
        "rootMessageTypeName": "A",
        "rootFileDescriptorName": "a",
    }
    return ValueSchema("PROTOBUF_NATIVE", json.dumps(told).encode(), {})


NUMBERED = ValueSchema(
    "PROTOBUF",
    b"{}",
    {
        "__PARSING_INFO__": json.dumps(
            [{"number": 1, "name": "item", "type": "STRING"}, {"number": 2, "name": "count", "type": "INT32"}]
        )
    },
)


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def key_value(encoding: str) -> ValueSchema:
    told = {"key.schema.type": "STRING", "value.schema.type": "INT32", "kv.encoding.type": encoding}
    return ValueSchema("KEY_VALUE", sized(b"") + sized(b""), told)


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("STRING", b"words", "words"),
        ("JSON", b'{"a":1}', {"a": 1}),
        ("INT8", b"\xff", -1),
        ("INT16", struct.pack(">h", -300), -300),
        ("INT32", struct.pack(">i", 70_000), 70_000),
        ("INT64", struct.pack(">q", 2**40), 2**40),
        ("FLOAT", struct.pack(">f", 0.5), 0.5),
        ("DOUBLE", struct.pack(">d", 0.25), 0.25),
        ("BOOLEAN", b"\x01", True),
        ("DATE", struct.pack(">q", 1000), "1970-01-01T00:00:01+00:00"),
        ("TIMESTAMP", struct.pack(">q", 1500), "1970-01-01T00:00:01.500000+00:00"),
        ("INSTANT", struct.pack(">qi", 2, 500_000_000), "1970-01-01T00:00:02.500000+00:00"),
        ("LOCAL_DATE", struct.pack(">q", 365), "1971-01-01"),
        ("LOCAL_TIME", struct.pack(">q", 3_600_000_000_000), "01:00:00"),
        ("LOCAL_DATE_TIME", struct.pack(">qq", 1, 60_000_000_000), "1970-01-02T00:01:00"),
    ],
)
def test_plain_kinds(kind: str, value: bytes, shown: object) -> None:
    assert decode(value, ValueSchema(kind, b"", {})) == shown


def test_avro_and_protobuf_are_read_as_they_were_written() -> None:
    avro = ValueSchema("AVRO", AVRO, {})
    assert decode(encode('{"a": 5, "b": "x"}', avro), avro) == {"a": 5, "b": "x"}
    for schema in (protobuf(), NUMBERED):
        assert decode(encode('{"item": "nails", "count": 3}', schema), schema) == {"item": "nails", "count": 3}


def test_key_value_is_both_inline_and_separated() -> None:
    number = struct.pack(">i", 7)
    assert decode(sized(b"k") + sized(number), key_value("INLINE")) == {"key": "k", "value": 7}
    assert decode(number, key_value("SEPARATED"), b"k") == {"key": "k", "value": 7}


@pytest.mark.parametrize(("kind", "text"), [("INT32", "seven"), ("JSON", "{"), ("AVRO", "{}"), ("KEY_VALUE", "x")])
def test_what_does_not_fit_is_refused(kind: str, text: str) -> None:
    with pytest.raises(Exception, match=r"."):
        encode(text, ValueSchema(kind, AVRO, {}))


@pytest.mark.parametrize(
    "kind", ["AVRO", "PROTOBUF_NATIVE", "PROTOBUF", "KEY_VALUE", "JSON", "STRING", "INT32", "ODD"]
)
@given(value=st.binary(max_size=60))
def test_whatever_the_bytes_are_something_is_shown(kind: str, value: bytes) -> None:
    schema = {"PROTOBUF_NATIVE": protobuf(), "PROTOBUF": NUMBERED, "KEY_VALUE": key_value("INLINE")}.get(
        kind, ValueSchema(kind, AVRO, {})
    )
    shown = show(value, schema)
    assert isinstance(shown.text, str)


def test_bytes_are_text_where_they_are_and_hexadecimal_where_they_are_not() -> None:
    assert plain(b"words\nand lines").kind == "text"
    assert plain(b"\x00\x01").text.startswith("000000  00 01")
    assert show(None, None).text == "null"
