"""Protobuf values become columns as protobuf's own runtime reads them, by the compiled loop and without it."""

import json
from base64 import b64encode
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, timestamp_pb2
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from weir.client.schemas import TopicSchema
from weir.model.errors import ConfigError, WireError
from weir.spark.values.typed import ValueSchema, value_schema
from weir.testing.kinds import rounds

NUMBERS = {
    "int32": st.integers(-(1 << 31), (1 << 31) - 1),
    "sint32": st.integers(-(1 << 31), (1 << 31) - 1),
    "sfixed32": st.integers(-(1 << 31), (1 << 31) - 1),
    "int64": st.integers(-(1 << 63), (1 << 63) - 1),
    "sint64": st.integers(-(1 << 63), (1 << 63) - 1),
    "sfixed64": st.integers(-(1 << 63), (1 << 63) - 1),
    "uint32": st.integers(0, (1 << 32) - 1),
    "fixed32": st.integers(0, (1 << 32) - 1),
    "uint64": st.integers(0, (1 << 64) - 1),
    "fixed64": st.integers(0, (1 << 64) - 1),
    "bool": st.booleans(),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=5),
    "bytes": st.binary(max_size=5),
}
P = descriptor_pb2.FieldDescriptorProto


def _file() -> descriptor_pb2.FileDescriptorProto:
    """Flat: each kind of number with and without presence, an enum. Deep: repeated, maps, messages, a choice."""
    file = descriptor_pb2.FileDescriptorProto(name="test.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    color = file.enum_type.add(name="Color")
    color.value.add(name="RED", number=0)
    color.value.add(name="BLUE", number=7)
    one = file.message_type.add(name="Flat")
    for at, kind in enumerate(NUMBERS):
        one.field.add(name=kind, number=at + 1, type=f"TYPE_{kind.upper()}", label="LABEL_OPTIONAL")
        one.oneof_decl.add(name=f"_maybe_{kind}")
        maybe = one.field.add(name=f"maybe_{kind}", number=100 + at, type=f"TYPE_{kind.upper()}", oneof_index=at)
        maybe.label, maybe.proto3_optional = P.LABEL_OPTIONAL, True
    one.field.add(name="color", number=5000, type="TYPE_ENUM", type_name=".shop.Color", label="LABEL_OPTIONAL")
    deep = file.message_type.add(name="Deep")
    inner = deep.nested_type.add(name="Inner")
    inner.field.add(name="n", number=1, type="TYPE_INT64", label="LABEL_OPTIONAL")
    inner.field.add(name="colors", number=2, type="TYPE_ENUM", type_name=".shop.Color", label="LABEL_REPEATED")
    entry = deep.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type="TYPE_STRING", label="LABEL_OPTIONAL")
    entry.field.add(
        name="value", number=2, type="TYPE_MESSAGE", type_name=".shop.Deep.Inner", label="LABEL_OPTIONAL"
    )
    message = {"type": "TYPE_MESSAGE", "type_name": ".shop.Deep.Inner"}
    deep.field.add(name="inner", number=1, label="LABEL_OPTIONAL", **message)
    deep.field.add(name="many", number=2, label="LABEL_REPEATED", **message)
    deep.field.add(name="sizes", number=3, type="TYPE_UINT64", label="LABEL_REPEATED")
    deep.field.add(
        name="counts", number=4, type="TYPE_MESSAGE", type_name=".shop.Deep.CountsEntry", label="LABEL_REPEATED"
    )
    deep.oneof_decl.add(name="choice")
    deep.field.add(name="text", number=5, type="TYPE_STRING", label="LABEL_OPTIONAL", oneof_index=0)
    deep.field.add(name="number", number=6, type="TYPE_INT32", label="LABEL_OPTIONAL", oneof_index=0)
    stamp = {"type": "TYPE_MESSAGE", "type_name": ".google.protobuf.Timestamp"}
    deep.field.add(name="at", number=7, label="LABEL_OPTIONAL", **stamp)
    loop = file.message_type.add(name="Loop")
    loop.field.add(name="again", number=1, type="TYPE_MESSAGE", type_name=".shop.Loop", label="LABEL_OPTIONAL")
    return file


FILES = descriptor_pb2.FileDescriptorSet()
timestamp_pb2.DESCRIPTOR.CopyToProto(FILES.file.add())
FILES.file.append(_file())
POOL = descriptor_pool.DescriptorPool()
for _one in FILES.file:
    POOL.Add(_one)
Flat, Deep = (GetMessageClass(POOL.FindMessageTypeByName(f"shop.{name}")) for name in ("Flat", "Deep"))


def definition(name: str) -> str:
    files = b64encode(FILES.SerializeToString()).decode()
    return json.dumps({"fileDescriptorSet": files, "rootMessageTypeName": f"shop.{name}"})


def batch_of(values: list[bytes | None]) -> pa.RecordBatch:
    columns = [pa.array(values, pa.binary()), pa.array([0] * len(values), pa.int32())]
    columns.append(pa.array(range(100, 100 + len(values)), pa.int64()))
    return pa.RecordBatch.from_arrays(columns, names=["value", "partition", "offset"])


def column(name: str, values: list[bytes | None], *, permissive: bool = False) -> list[Any]:
    found = ValueSchema("orders", "PROTOBUF_NATIVE", definition(name), permissive).decoder()(batch_of(values))
    found.validate(full=True)
    return found.column("value").to_pylist()


def wanted_flat(message: Any) -> dict[str, Any]:
    found = {
        name: getattr(message, name) if not name.startswith("maybe") or message.HasField(name) else None
        for name in message.DESCRIPTOR.fields_by_name
    }
    for name in ("uint64", "fixed64", "maybe_uint64", "maybe_fixed64"):
        found[name] = None if found[name] is None else Decimal(found[name])
    return found | {"color": {0: "RED", 7: "BLUE"}.get(message.color, str(message.color))}


flat_values = st.fixed_dictionaries(
    {},
    optional=NUMBERS
    | {f"maybe_{kind}": values for kind, values in NUMBERS.items()}
    | {"color": st.sampled_from([0, 7, 3, -1])},
)


@pytest.mark.slow
@settings(max_examples=rounds(80), deadline=None)
@given(st.lists(st.none() | flat_values, max_size=5))
def test_flat_messages_are_what_the_runtime_wrote(values: list[dict[str, Any] | None]) -> None:
    messages = [None if value is None else Flat(**value) for value in values]
    found = column("Flat", [None if one is None else one.SerializeToString() for one in messages])
    assert found == [None if one is None else wanted_flat(one) for one in messages]


@settings(max_examples=rounds(150), deadline=None)
@given(flat_values, st.integers(0, 1000), st.integers(0, 255), st.sampled_from(["cut", "set", "add"]))
@example({"string": "x"}, 0, 0, "add")
def test_damaged_messages_are_what_the_runtime_makes_of_them(
    value: dict[str, Any], at: int, byte: int, how: str
) -> None:
    raw = bytearray(Flat(**value).SerializeToString() + b"\x08\x01")
    at %= len(raw)
    if how == "add":
        raw.insert(at, byte)
    else:
        raw[at] = byte
    damaged = bytes(raw[:at] if how == "cut" else raw)
    (found,) = column("Flat", [damaged], permissive=True)
    try:
        message = Flat.FromString(damaged)
    except DecodeError:
        assert found is None
        return
    assert repr(found) == repr(wanted_flat(message))  # a float may be none that equals itself


@pytest.mark.parametrize("name", [name for name in Flat.DESCRIPTOR.fields_by_name if name in NUMBERS])
@pytest.mark.parametrize("number", [b"\xff" * 9 + b"\x01", b"\x81\x80\x80\x80\x70", b"\xaa\xaa\xaa\xaa\xaa\x2a"])
def test_a_number_too_long_for_its_field_is_cut_as_the_runtime_cuts_it(name: str, number: bytes) -> None:
    tag = Flat.DESCRIPTOR.fields_by_name[name].number << 3
    raw = (bytes([tag & 0x7F | 0x80, tag >> 7]) if tag > 0x7F else bytes([tag])) + number
    assert repr(column("Flat", [raw])) == repr([wanted_flat(Flat.FromString(raw))])


@pytest.mark.parametrize(
    "raw", [b"\x0b\x08\x01\x0c\x08\x05", b"\x0d\x01\x00\x00\x00\x08\x05"], ids=["group", "other"]
)
def test_unknown_groups_and_fields_of_another_wire_type_are_passed_over(raw: bytes) -> None:
    assert column("Flat", [raw])[0]["int32"] == 5


inners = st.builds(
    lambda n, colors: {"n": n, "colors": colors}, NUMBERS["int64"], st.lists(st.sampled_from([0, 7]), max_size=2)
)
deep_values = st.fixed_dictionaries(
    {},
    optional={
        "inner": inners,
        "many": st.lists(inners, max_size=2),
        "sizes": st.lists(NUMBERS["uint64"], max_size=2),
        "counts": st.dictionaries(st.text(max_size=2), inners, max_size=2),
        "at": st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).map(lambda one: one.replace(tzinfo=UTC)),  # noqa: DTZ001
    },
).flatmap(lambda value: st.sampled_from([{}, {"text": ""}, {"number": 5}]).map(lambda choice: value | choice))


def wanted_inner(value: dict[str, Any]) -> dict[str, Any]:
    return {"n": value["n"], "colors": [{0: "RED", 7: "BLUE"}[one] for one in value["colors"]]}


@settings(max_examples=rounds(60), deadline=None)
@given(st.lists(st.none() | deep_values, max_size=4))
def test_deep_messages_are_what_the_runtime_wrote(values: list[dict[str, Any] | None]) -> None:
    found = column("Deep", [None if one is None else Deep(**one).SerializeToString() for one in values])
    for row, value in zip(found, values, strict=True):
        if value is None:
            assert row is None
            continue
        assert row["inner"] == (wanted_inner(value["inner"]) if "inner" in value else None)
        assert row["many"] == [wanted_inner(one) for one in value.get("many", ())]
        assert row["sizes"] == list(map(Decimal, value.get("sizes", ())))
        assert dict(row["counts"]) == {name: wanted_inner(one) for name, one in value.get("counts", {}).items()}
        assert (row["text"], row["number"], row["at"]) == (value.get("text"), value.get("number"), value.get("at"))


@pytest.mark.parametrize("name", ["Flat", "Deep"])
def test_a_message_that_is_none_is_named_or_null(name: str) -> None:
    with pytest.raises(WireError, match="orders-0 at offset 101"):
        column(name, [b"", b"\xff"])
    assert [row is None for row in column(name, [b"", b"\xff", None, b""], permissive=True)] == [
        False,
        True,
        True,
        False,
    ]


def test_a_moment_beyond_spark_is_named_or_null() -> None:
    far = Deep()
    far.at.seconds = 1 << 62
    with pytest.raises(WireError, match="offset 100"):
        column("Deep", [far.SerializeToString()])
    assert column("Deep", [far.SerializeToString()], permissive=True) == [None]


def test_a_message_that_contains_itself_can_be_no_column() -> None:
    data = b64encode(definition("Loop").encode()).decode()
    with pytest.raises(ConfigError, match="contains itself"):
        value_schema("orders", [TopicSchema(0, "PROTOBUF_NATIVE", data)], permissive=False)


def test_the_older_protobuf_schema_is_read_by_the_numbers_that_it_carries() -> None:
    fields = [
        {"number": 14, "name": "label", "type": "STRING", "label": "LABEL_OPTIONAL", "definition": None},
        {"number": 1, "name": "count", "type": "INT32", "label": "LABEL_REQUIRED", "definition": None},
    ]
    latest = TopicSchema(0, "PROTOBUF", "{}", {"__PARSING_INFO__": json.dumps(fields)})
    schema = value_schema("orders", [latest], permissive=False)
    assert isinstance(schema.type, StructType)
    assert schema.type.simpleString() == "struct<label:string,count:int>"
    raw = Flat(int32=5, string="tea").SerializeToString()
    assert schema.decoder()(batch_of([raw])).column("value").to_pylist() == [{"label": "tea", "count": 5}]
    fields.append({"number": 3, "name": "inner", "type": "MESSAGE", "label": "LABEL_OPTIONAL", "definition": None})
    nested = TopicSchema(0, "PROTOBUF", "{}", {"__PARSING_INFO__": json.dumps(fields)})
    with pytest.raises(ConfigError, match="inner"):
        value_schema("orders", [nested], permissive=False)
