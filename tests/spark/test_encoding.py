"""Rows to bytes by AVRO and Protobuf schemas, and back by what reads them: without Spark."""

import json
from base64 import b64encode
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from weir.client.schemas import TopicSchema
from weir.model.errors import WireError
from weir.spark.values.encoding import arrow_encoder, row_encoder
from weir.spark.values.typed import value_schema

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "who", "type": ["null", "string"], "default": None},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "cents", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
            {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
            {"name": "more", "type": {"type": "map", "values": "int"}, "default": {}},
        ],
    }
)
AT = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)
ROW = {
    "id": 7,
    "who": "ann",
    "at": AT,
    "day": date(2026, 5, 1),
    "cents": Decimal("9.50"),
    "tags": ["a", "b"],
    "more": [("x", 1)],
}


def _read_back(kind: str, definition: str, data: bytes) -> dict[str, object]:
    """By the decoder of the source."""
    schema = value_schema("orders", [TopicSchema(0, kind, definition)], permissive=False)
    headers = pa.array([None], pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})))
    columns = [pa.array([None], pa.binary()), pa.array([data], pa.binary()), headers]
    found = schema.decoder()(pa.record_batch(columns, names=["key", "value", "headers"]))
    row = found.column("value").to_pylist()[0]
    assert isinstance(row, dict)
    return row


def test_an_avro_row_is_what_the_source_reads() -> None:
    assert _read_back("AVRO", AVRO, row_encoder("AVRO", AVRO, "orders")(ROW)) == ROW


def test_columns_that_are_left_out_have_their_default() -> None:
    given = {name: ROW[name] for name in ("id", "at", "day", "cents")}
    found = _read_back("AVRO", AVRO, row_encoder("AVRO", AVRO, "orders")(given))
    assert (found["who"], found["tags"], found["more"]) == (None, [], [])


def test_a_row_that_does_not_fit_is_an_error_that_names_the_topic() -> None:
    with pytest.raises(WireError, match="orders"):
        row_encoder("AVRO", AVRO, "orders")(ROW | {"id": None})


def _native() -> str:
    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NEW", number=0)
    kind.value.add(name="PAID", number=1)
    item = file.message_type.add(name="Item")
    item.field.add(name="sku", number=1, type="TYPE_STRING", label="LABEL_OPTIONAL")
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type="TYPE_UINT64", label="LABEL_OPTIONAL")
    order.field.add(name="kind", number=2, type="TYPE_ENUM", type_name=".shop.Kind", label="LABEL_OPTIONAL")
    order.field.add(name="items", number=3, type="TYPE_MESSAGE", type_name=".shop.Item", label="LABEL_REPEATED")
    order.field.add(
        name="at", number=4, type="TYPE_MESSAGE", type_name=".google.protobuf.Timestamp", label="LABEL_OPTIONAL"
    )
    return _definition(file, "shop.Order")


def _definition(file: descriptor_pb2.FileDescriptorProto, root: str) -> str:
    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    files = descriptor_pb2.FileDescriptorSet(file=[stamp, file])
    return json.dumps(
        {
            "fileDescriptorSet": b64encode(files.SerializeToString()).decode(),
            "rootMessageTypeName": root,
            "rootFileDescriptorName": file.name,
        }
    )


def test_a_protobuf_row_is_what_the_source_reads() -> None:
    row = {"id": Decimal(7), "kind": "PAID", "items": [{"sku": "a"}, {"sku": "b"}], "at": AT}
    native = _native()
    found = _read_back(
        "PROTOBUF_NATIVE", b64encode(native.encode()).decode(), row_encoder("PROTOBUF_NATIVE", native, "o")(row)
    )
    assert found == row


def test_arrays_of_rows_keep_their_nulls() -> None:
    rows = pa.array([None, {"id": 1, "at": AT, "day": ROW["day"], "cents": Decimal("1.00")}])
    found = arrow_encoder("AVRO", AVRO, "orders")(rows)
    assert found.type == pa.binary()
    assert found.null_count == 1


def _record(kind: object) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]})


_UNION = ["null", {"type": "record", "name": "X", "fields": [{"name": "n", "type": "int"}]}, "string"]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (["null", {"type": "map", "values": "int"}], []),  # a map without entries is no list
        (["null", {"type": "map", "values": ["null", "int"]}], [("x", None), ("y", 2)]),
        ({"type": "array", "items": {"type": "map", "values": "string"}}, [[], [("x", "y")]]),
        ({"type": "map", "values": {"type": "map", "values": "int"}}, [("x", [])]),
        (_UNION, {"member0": {"n": 3}, "member1": None}),
        (_UNION, {"member0": None, "member1": "text"}),
        (_UNION, None),
        (["int", "long"], 1 << 40),
        ({"type": "string", "logicalType": "uuid"}, "8f8a1b4e-7a3b-4d5e-9f00-0123456789ab"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab"),
    ],
)
def test_nested_avro_is_what_the_source_reads(kind: object, given: object) -> None:
    definition = _record(kind)
    assert _read_back("AVRO", definition, row_encoder("AVRO", definition, "t")({"a": given})) == {"a": given}


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        ("string", None, "a must not be null"),
        ({"type": "array", "items": "int"}, [1, None], "an item of a must not be null"),
        ({"type": "map", "values": "int"}, [("x", None)], "an entry of a must not be null"),
        (["int", "string"], {"member0": None, "member1": None}, "a must not be null"),
        (["int", "string"], {"member0": 1, "member1": "x"}, "a has several members of its union"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "C", "a is 'C', and none of A, B"),
        ({"type": "string", "logicalType": "uuid"}, "7", "a is '7', which is no UUID"),
    ],
)
def test_what_does_not_fit_an_avro_schema_is_named(kind: object, given: object, told: str) -> None:
    with pytest.raises(WireError, match=f"schema of t: {told}$"):
        row_encoder("AVRO", _record(kind), "t")({"a": given})


def test_what_does_not_fit_a_protobuf_schema_is_named() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", syntax="proto2")
    made = file.message_type.add(name="M")
    text, label = descriptor_pb2.FieldDescriptorProto.TYPE_STRING, descriptor_pb2.FieldDescriptorProto
    made.oneof_decl.add(name="either")
    for number, (name, kind) in enumerate(
        (("must", label.LABEL_REQUIRED), ("many", label.LABEL_REPEATED), ("x", label.LABEL_OPTIONAL)), 1
    ):
        made.field.add(name=name, number=number, type=text, label=kind)
    for number, name in enumerate(("one", "other"), 4):
        made.field.add(name=name, number=number, type=text, label=label.LABEL_OPTIONAL, oneof_index=0)
    encode = row_encoder("PROTOBUF_NATIVE", _definition(file, "M"), "t")
    assert encode({"must": "a", "many": [], "x": None, "one": "b"})
    for row, told in (
        ({"many": []}, "must"),
        ({"must": "a", "many": ["b", None]}, "many has a null in it"),
        ({"must": "a", "one": "b", "other": "c"}, "only one of one, other can be given"),
    ):
        with pytest.raises(WireError, match=f"schema of t: .*{told}"):
            encode(row)
