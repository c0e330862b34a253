"""Rows to bytes by AVRO and Protobuf schemas, and back by what reads them: without Spark."""

import json
from base64 import b64encode
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from weir.client.registry import TopicSchema
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
    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    files = descriptor_pb2.FileDescriptorSet(file=[stamp, file])
    return json.dumps(
        {
            "fileDescriptorSet": b64encode(files.SerializeToString()).decode(),
            "rootMessageTypeName": "shop.Order",
            "rootFileDescriptorName": "order.proto",
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
