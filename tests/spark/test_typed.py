"""Values become typed columns by the registry's schema: what the codecs of Avro and JSON read."""

import io
import json
from datetime import UTC, date, datetime
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.client.schemas import TopicSchema, topic_of
from weir.model.errors import ConfigError, WireError
from weir.spark.values.typed import ValueSchema, value_schema
from weir.testing.kinds import rounds

FIELDS = [
    {"name": "id", "type": "long"},
    {"name": "small", "type": "int"},
    {"name": "ok", "type": "boolean"},
    {"name": "ratio", "type": "double"},
    {"name": "single", "type": "float"},
    {"name": "name", "type": "string"},
    {"name": "maybe", "type": ["null", "string"]},
    {"name": "other", "type": ["long", "null"]},
    {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "moment", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
]
RAW = {"name": "raw", "type": "bytes"}
DEFINITION = json.dumps({"type": "record", "name": "Order", "fields": FIELDS})
WITH_BYTES = json.dumps({"type": "record", "name": "Order", "fields": [*FIELDS, RAW]})

orders = st.fixed_dictionaries(
    {
        "id": st.integers(-(1 << 63), (1 << 63) - 1),
        "small": st.integers(-(1 << 31), (1 << 31) - 1),
        "ok": st.booleans(),
        "ratio": st.floats(allow_nan=False),
        "single": st.floats(width=32, allow_nan=False),
        "name": st.text(max_size=10),
        "maybe": st.none() | st.text(max_size=10),
        "other": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "color": st.sampled_from(["RED", "BLUE"]),
        "day": st.dates(date(1900, 1, 1), date(2200, 1, 1)),
        "moment": st.none()
        | st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)).map(  # noqa: DTZ001
            lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000, tzinfo=UTC)
        ),
        "raw": st.binary(max_size=10),
    }
)


def record(kind: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]})


def batch_of(values: list[bytes | None]) -> pa.RecordBatch:
    columns = [pa.array(values, pa.binary()), pa.array([0] * len(values), pa.int32())]
    columns.append(pa.array(range(100, 100 + len(values)), pa.int64()))
    return pa.RecordBatch.from_arrays(columns, names=["value", "partition", "offset"])


def typed(kind: str, definition: str, values: list[bytes | None], *, permissive: bool = False) -> list[Any]:
    found = ValueSchema("orders", kind, definition, permissive).decoder()(batch_of(values))
    found.validate(full=True)
    return found.column("value").to_pylist()


def avro(value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(WITH_BYTES)), value)
    return out.getvalue()


@pytest.mark.slow
@settings(max_examples=rounds(60), deadline=None)
@given(st.lists(st.none() | orders, max_size=8))
def test_avro_values_are_what_avros_codec_wrote(values: list[dict[str, Any] | None]) -> None:
    assert typed("AVRO", WITH_BYTES, [None if v is None else avro(v) for v in values]) == values


def as_json(value: dict[str, Any]) -> bytes:
    plain = {name: found for name, found in value.items() if name != "raw"}
    plain["day"] = (value["day"] - date(1970, 1, 1)).days
    if value["moment"] is not None:
        plain["moment"] = round(value["moment"].timestamp() * 1000)
    return json.dumps(plain, indent=1 if value["ok"] else None).encode()


@settings(max_examples=rounds(60), deadline=None)
@given(
    st.lists(st.none() | orders.filter(lambda v: abs(v["ratio"]) < 1e300 and abs(v["single"]) < 1e30), max_size=8)
)
def test_json_values_are_what_jsons_codec_wrote(values: list[dict[str, Any] | None]) -> None:
    wanted = [None if v is None else {name: x for name, x in v.items() if name != "raw"} for v in values]
    assert typed("JSON", DEFINITION, [None if v is None else as_json(v) for v in values]) == wanted


@settings(max_examples=rounds(100), deadline=None)
@given(orders, st.integers(0, 1000), st.integers(0, 255), st.booleans())
def test_damaged_avro_is_a_value_or_an_error_that_names_it(
    value: dict[str, Any], at: int, byte: int, cut: bool
) -> None:
    raw = bytearray(avro(value))
    raw[at % len(raw)] = byte
    damaged = bytes(raw[: at % len(raw)] if cut else raw)
    strict, lenient = (ValueSchema("orders", "AVRO", WITH_BYTES, permissive) for permissive in (False, True))
    found = lenient.decoder()(batch_of([damaged]))
    found.validate(full=True)
    # A value is the same to both, down to its bits: a float may be none that equals itself.
    if found.column("value").null_count:
        with pytest.raises(WireError, match="offset 100"):
            strict.decoder()(batch_of([damaged]))
    else:
        assert (
            pa.ipc.read_message(found.serialize()).body
            == pa.ipc.read_message(strict.decoder()(batch_of([damaged])).serialize()).body
        )


def test_a_value_that_does_not_fit_is_named_or_null() -> None:
    definition = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})
    for kind, good, bad in (
        ("AVRO", b"\x02", b"\x02\x02"),
        ("JSON", b'{"id": 1}', b"{oops"),
        ("JSON", b'{"id": 1}', b"[1]"),
    ):
        with pytest.raises(WireError, match="orders-0 at offset 101"):
            typed(kind, definition, [good, bad, good])
        assert typed(kind, definition, [good, bad, None, good], permissive=True) == [
            {"id": 1},
            None,
            None,
            {"id": 1},
        ]
    with pytest.raises(WireError, match="offset 100"):
        typed("STRING", "", [b"\xff"])
    assert typed("STRING", "", [b"text", None]) == ["text", None]


def test_fields_that_json_does_not_have_are_null_and_others_are_left_out() -> None:
    definition = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": ["null", "long"]}]})
    assert typed("JSON", definition, [b'{"more": [1]}', b'{"id": 5}']) == [{"id": None}, {"id": 5}]


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ([TopicSchema(0, "LOCAL_TIME", "")], "KEY_VALUE"),
        ([TopicSchema(0, "AVRO", '"string"')], "no record"),
        ([TopicSchema(0, "PROTOBUF_NATIVE", "e30=")], "no descriptor"),
        ([TopicSchema(0, "PROTOBUF", "{}")], "numbers of its fields"),
        ([TopicSchema(0, "JSON", record({"type": "map"}))], "field x"),
        ([TopicSchema(0, "AVRO", record({"type": "array", "items": "null"}))], "field x"),
        ([TopicSchema(0, "AVRO", record(["string", {"type": "enum", "name": "E", "symbols": ["A"]}]))], "field x"),
        ([TopicSchema(0, "AVRO", record(["null", "R"]))], "field x"),
    ],
    ids=["kind", "no record", "descriptor", "numbers", "map", "empty items", "union", "recursion"],
)
def test_a_schema_that_can_be_no_column_is_an_error_that_says_why(
    versions: list[TopicSchema], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        value_schema("orders", versions, permissive=False)


def test_topics_of_other_namespaces_are_found() -> None:
    assert str(topic_of("orders")) == "persistent://public/default/orders"
    assert str(topic_of("acme..shop..orders")) == "persistent://acme/shop/orders"
