"""Nested values, logical types and older schema versions are columns as Avro's and JSON's codecs read them."""

import io
import json
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.client.schemas import TopicSchema
from weir.model.errors import WireError
from weir.spark.records.decoder import SCHEMA_WITH_HEADERS
from weir.spark.values.typed import ValueSchema, value_schema, versions_of
from weir.testing.kinds import rounds
from weir.wire.pulsar.translation import SCHEMA_VERSION

LONG = (-(1 << 63), (1 << 63) - 1)
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
HUGE = {"type": "fixed", "name": "Huge", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 3}
FLAT = [
    {"name": "price", "type": MONEY},
    {"name": "huge", "type": ["null", HUGE]},
    {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
    {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 3}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "local", "type": ["null", {"type": "long", "logicalType": "local-timestamp-millis"}]},
    {
        "name": "inner",
        "type": {"type": "record", "name": "Inner", "namespace": "in", "fields": [{"name": "n", "type": "long"}]},
    },
]
NESTED = [
    *FLAT,
    {"name": "maybe", "type": ["null", "in.Inner"]},
    {"name": "many", "type": {"type": "array", "items": "in.Inner"}},
    {"name": "days", "type": {"type": "map", "values": ["null", {"type": "int", "logicalType": "date"}]}},
    {"name": "wide", "type": ["null", "int", "long"]},
    {"name": "one_of", "type": ["null", "string", "in.Inner", "boolean"]},
    {"name": "lists", "type": ["null", {"type": "array", "items": {"type": "array", "items": MONEY}}]},
]


def record(fields: list[Any]) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


def decimals(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    return st.integers(-(10**digits) + 1, 10**digits - 1).map(
        lambda number: (
            Decimal(number).scaleb(-scale) if digits < 28 else Decimal((number < 0, _digits(number), -scale))
        )
    )


def _digits(number: int) -> tuple[int, ...]:
    return tuple(map(int, str(abs(number))))


inners = st.fixed_dictionaries({"n": st.integers(*LONG)})
flat = {
    "price": decimals(10, 2),
    "huge": st.none() | decimals(38, 3),
    "id": st.uuids().map(str),
    "code": st.binary(min_size=3, max_size=3),
    "at": st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).map(lambda one: one.replace(tzinfo=UTC)),  # noqa: DTZ001
    "local": st.none()
    | st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)).map(  # noqa: DTZ001
        lambda one: one.replace(microsecond=one.microsecond // 1000 * 1000)
    ),
    "inner": inners,
}
nested = flat | {
    "maybe": st.none() | inners,
    "many": st.lists(inners, max_size=3),
    "days": st.dictionaries(
        st.text(max_size=3), st.none() | st.dates(date(1900, 1, 1), date(2200, 1, 1)), max_size=3
    ),
    "wide": st.none() | st.integers(*LONG),
    "one_of": st.none() | st.text(max_size=3) | inners | st.booleans(),
    "lists": st.none() | st.lists(st.lists(decimals(10, 2), max_size=2), max_size=2),
}


def avro(definition: str, value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(definition)), value)
    return out.getvalue()


def as_column(value: dict[str, Any] | None) -> dict[str, Any] | None:
    """What the column should have: pairs for maps, members for unions."""
    if value is None or "days" not in value:
        return value
    members = {str: "member0", dict: "member1", bool: "member2"}
    one_of = value["one_of"]
    found = dict.fromkeys(members.values()) | {members[type(one_of)]: one_of} if one_of is not None else None
    return value | {"days": list(value["days"].items()), "one_of": found}


def batch_of(values: list[bytes | None], versions: list[bytes | None] | None = None) -> pa.RecordBatch:
    headers = [[] if one is None else [(SCHEMA_VERSION, one)] for one in versions or [None] * len(values)]
    columns = [
        pa.array(values, pa.binary()),
        pa.array([0] * len(values), pa.int32()),
        pa.array(range(100, 100 + len(values)), pa.int64()),
        pa.array(headers, SCHEMA_WITH_HEADERS.field("headers").type),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["value", "partition", "offset", "headers"])


def column(schema: ValueSchema, batch: pa.RecordBatch) -> list[Any]:
    found = schema.decoder()(batch)
    found.validate(full=True)
    return found.column("value").to_pylist()


@pytest.mark.parametrize(("fields", "kinds"), [(FLAT, flat), (NESTED, nested)], ids=["flat", "nested"])
@settings(max_examples=rounds(40), deadline=None)
@given(data=st.data())
def test_avro_values_are_what_avros_codec_wrote(fields: list[Any], kinds: dict[str, Any], data: Any) -> None:
    values = data.draw(st.lists(st.none() | st.fixed_dictionaries(kinds), max_size=5))
    definition = record(fields)
    raw = [None if value is None else avro(definition, value) for value in values]
    found = column(ValueSchema("orders", "AVRO", definition), batch_of(raw))
    assert found == [as_column(value) for value in values]


@settings(max_examples=rounds(60), deadline=None)
@given(st.fixed_dictionaries(nested), st.integers(0, 1000), st.integers(0, 255), st.booleans())
def test_damaged_avro_is_a_value_or_null(value: dict[str, Any], at: int, byte: int, cut: bool) -> None:
    definition = record(NESTED)
    raw = bytearray(avro(definition, value))
    raw[at % len(raw)] = byte
    damaged = bytes(raw[: at % len(raw)] if cut else raw)
    found = ValueSchema("orders", "AVRO", definition, permissive=True).decoder()(
        batch_of([avro(definition, value), damaged])
    )
    found.validate(full=True)
    assert found.column("value").slice(0, 1).to_pylist() == [as_column(value)]


def as_json(value: dict[str, Any]) -> bytes:
    """As Jackson writes it: moments count from 1970, decimals are numbers."""
    plain = {name: value[name] for name in ("id", "inner", "maybe", "many", "wide")}
    text = json.dumps(plain)[:-1]
    text += f', "price": {value["price"]}, "at": {_micros(value["at"])}'
    days = {name: None if day is None else (day - date(1970, 1, 1)).days for name, day in value["days"].items()}
    return (text + f', "days": {json.dumps(days)}}}').encode()


def _micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // (datetime.resolution)


@pytest.mark.parametrize(
    "names", [("id", "inner", "maybe", "many", "at"), ("price", "days", "wide", "inner")], ids=["at once", "each"]
)
@settings(max_examples=rounds(40), deadline=None)
@given(values=st.lists(st.none() | st.fixed_dictionaries(nested), max_size=5))
def test_json_values_are_what_jsons_codec_wrote(
    names: tuple[str, ...], values: list[dict[str, Any] | None]
) -> None:
    definition = record([field for field in NESTED if field["name"] in names])
    wanted = [
        None if one is None else {name: value for name, value in (as_column(one) or {}).items() if name in names}
        for one in values
    ]
    raw = [None if value is None else as_json(value) for value in values]
    assert column(ValueSchema("orders", "JSON", definition), batch_of(raw)) == wanted


def test_json_that_does_not_fit_its_nested_schema_is_named_or_null() -> None:
    for field, bad in (
        ({"name": "many", "type": {"type": "array", "items": "long"}}, '{"many": ["x"]}'),
        ({"name": "days", "type": {"type": "map", "values": "long"}}, '{"days": [1]}'),
        ({"name": "price", "type": MONEY}, '{"price": 1.234}'),
        ({"name": "deep", "type": {"type": "map", "values": "long"}}, "[" * 100_000),
    ):
        definition = record([field])
        with pytest.raises(WireError, match="orders-0 at offset 101"):
            column(ValueSchema("orders", "JSON", definition), batch_of([b"{}", bad.encode()]))
        lenient = ValueSchema("orders", "JSON", definition, permissive=True)
        assert column(lenient, batch_of([b"{}", bad.encode()])) == [{field["name"]: None}, None]


# --- several versions -----------------------------------------------------------------------------------------

OLD = record([{"name": "id", "type": "int"}, {"name": "gone", "type": "string"}]).replace("Order", "shop.Purchase")
NEW = record([{"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": "none"}])
VERSIONS = [
    TopicSchema(0, "AVRO", OLD),
    TopicSchema(1, "AVRO", json.dumps(json.loads(NEW), indent=2)),
    TopicSchema(2, "AVRO", NEW),
]


def test_older_avro_values_are_read_through_the_latest_schema() -> None:
    schema = value_schema("orders", VERSIONS, permissive=False)
    old, new = avro(OLD, {"id": 1, "gone": "x"}), avro(NEW, {"id": 2, "note": "new"})
    found = column(schema, batch_of([new, old, None, new, old, new], [b"2", b"0", b"0", b"1", b"0", None]))
    ours, theirs = {"id": 2, "note": "new"}, {"id": 1, "note": "none"}
    assert found == [ours, theirs, None, ours, theirs, ours]


def test_a_version_that_came_later_or_is_none_is_named_or_null() -> None:
    new = avro(NEW, {"id": 2, "note": "new"})
    for version, said in ((b"3", "version 3"), (b"x", "version"), (b"\xff", "version"), (b"9" * 30, "version")):
        with pytest.raises(WireError, match=f"offset 101 is by {said}"):
            column(value_schema("orders", VERSIONS, permissive=False), batch_of([new, new], [b"2", version]))
        lenient = value_schema("orders", VERSIONS, permissive=True)
        assert column(lenient, batch_of([new, new], [version, b"2"])) == [None, {"id": 2, "note": "new"}]


def test_old_values_that_the_latest_schema_cannot_read_are_named() -> None:
    schema = value_schema("orders", [TopicSchema(0, "AVRO", NEW), TopicSchema(1, "AVRO", OLD)], permissive=False)
    with pytest.raises(WireError, match="offset 100"):  # `gone` has no default
        column(schema, batch_of([avro(NEW, {"id": 1, "note": "x"})], [b"0"]))


def test_the_last_header_says_the_version() -> None:
    lists = [
        [(SCHEMA_VERSION, b"1"), ("a", b"7"), (SCHEMA_VERSION, b"2")],
        [],
        [("b", None), (SCHEMA_VERSION, None)],
    ]
    headers = pa.array(lists, SCHEMA_WITH_HEADERS.field("headers").type)
    assert versions_of(headers).tolist() == [2, -1, -2]
    assert versions_of(headers.slice(1, 1)).tolist() == [-1]


def test_a_decimal_that_is_longer_than_it_says_does_not_fit() -> None:
    definition = record([{"name": "price", "type": MONEY}])
    too_large = (10**10).to_bytes(5, "big")
    for raw in (bytes([10]) + too_large, bytes([34]) + b"\x00" * 17):
        with pytest.raises(WireError, match="offset 101"):
            column(ValueSchema("orders", "AVRO", definition), batch_of([b"\x02\x01", raw]))
    least = ValueSchema("orders", "AVRO", definition)
    assert column(least, batch_of([b"\x02\xff", b"\x00"])) == [
        {"price": Decimal("-0.01")},
        {"price": Decimal("0.00")},
    ]


def test_a_uuid_is_its_text() -> None:
    definition = record([{"name": "id", "type": {"type": "string", "logicalType": "uuid"}}])
    text = str(UUID(int=5)).encode()
    assert column(ValueSchema("orders", "AVRO", definition), batch_of([struct.pack("B", 72) + text])) == [
        {"id": str(UUID(int=5))}
    ]
