"""Schemas of plain types, and of keys and values together, become columns."""

import json
from base64 import b64encode
from datetime import UTC, date, datetime
from struct import pack
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.client.schemas import TopicSchema
from weir.model.errors import ConfigError, WireError
from weir.spark.values.plain import split_inline
from weir.spark.values.typed import ValueSchema, value_schema
from weir.testing.kinds import rounds

RECORD = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
GROWN = {"type": "record", "name": "R", "fields": [*RECORD["fields"], {"name": "m", "type": "int", "default": 7}]}


def sized(part: bytes | None) -> bytes:
    return pack(">i", -1) if part is None else pack(">i", len(part)) + part


def key_value(
    key: tuple[str, str], value: tuple[str, str], *, encoding: str | None = "SEPARATED", version: int = 0
) -> TopicSchema:
    """As the registry tells it: the types and definitions of keys and values."""
    properties = {"key.schema.type": key[0], "value.schema.type": value[0], "key.schema.properties": "{}"}
    if encoding is not None:
        properties["kv.encoding.type"] = encoding
    data = sized(key[1].encode()) + sized(value[1].encode())
    return TopicSchema(version, "KEY_VALUE", b64encode(data).decode(), properties)


def batch_of(
    keys: list[bytes | None], values: list[bytes | None], versions: list[int] | None = None
) -> pa.RecordBatch:
    columns = {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "partition": pa.array([0] * len(values), pa.int32()),
        "offset": pa.array(range(100, 100 + len(values)), pa.int64()),
    }
    if versions is not None:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        rows = [[("weir-schema-version", str(one).encode())] for one in versions]
        columns["headers"] = pa.array(rows, kind)
    return pa.RecordBatch.from_pydict(columns)


def rows_of(schema: ValueSchema, batch: pa.RecordBatch) -> list[tuple[Any, Any]]:
    found = schema.decoder()(batch)
    found.validate(full=True)
    return list(zip(found.column("key").to_pylist(), found.column("value").to_pylist(), strict=True))


@settings(max_examples=rounds(60), deadline=None)
@given(st.lists(st.none() | st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9))))
def test_keys_and_values_that_lie_together_are_told_apart(pairs: list[tuple[bytes | None, bytes | None] | None]):
    together = [None if pair is None else sized(pair[0]) + sized(pair[1]) for pair in pairs]
    keys, values, bad = split_inline(pa.array(together, pa.binary()))
    assert (keys.to_pylist(), values.to_pylist()) == (
        [None if pair is None else pair[0] for pair in pairs],
        [None if pair is None else pair[1] for pair in pairs],
    )
    assert bad == []


@settings(max_examples=rounds(60), deadline=None)
@given(st.lists(st.binary(max_size=20)))
def test_bytes_that_are_no_key_and_value_are_found_and_never_read_beyond(values: list[bytes]) -> None:
    keys, found, bad = split_inline(pa.array(values, pa.binary()))
    for row, raw in enumerate(values):
        if row in bad:
            assert (keys[row].as_py(), found[row].as_py()) == (None, None)
        else:
            assert sized(keys[row].as_py()) + sized(found[row].as_py()) == raw


@pytest.mark.parametrize("encoding", ["SEPARATED", "INLINE", None])
def test_keys_and_values_are_typed_wherever_they_lie(encoding: str | None) -> None:
    schema = value_schema(
        "t", [key_value(("INT32", ""), ("JSON", json.dumps(RECORD)), encoding=encoding)], permissive=False
    )
    assert schema.key_type is not None
    assert (schema.key_type.simpleString(), schema.type.simpleString()) == ("int", "struct<n:int>")
    keys: list[bytes | None] = [pack(">i", 5), None, pack(">i", -1)]
    values: list[bytes | None] = [b'{"n": 1}', b'{"n": 2}', None]
    if encoding != "SEPARATED":
        together = [sized(key) + sized(value) for key, value in zip(keys, values, strict=True)]
        keys, values = [b"of the message"] * 3, list(together)
    assert rows_of(schema, batch_of(keys, values)) == [(5, {"n": 1}), (None, {"n": 2}), (-1, None)]


def test_keys_stay_bytes_for_who_wants_them_so_and_values_are_found_all_the_same() -> None:
    schema = value_schema("t", [key_value(("STRING", ""), ("INT8", ""), encoding="INLINE")], permissive=False)
    batch = batch_of([b"own"], [sized(b"k") + sized(b"\x05")])
    assert rows_of(schema.without_key(), batch) == [(b"own", 5)]
    assert rows_of(schema, batch) == [("k", 5)]


def test_a_key_or_value_that_does_not_fit_is_named_or_null() -> None:
    versions = [key_value(("INT32", ""), ("STRING", ""), encoding="INLINE")]
    strict, lax = (value_schema("t", versions, permissive=one) for one in (False, True))
    short, torn = batch_of([None], [sized(b"\0") + sized(b"v")]), batch_of([None], [b"\0\0\0\1"])
    with pytest.raises(WireError, match="the key of t-0 at offset 100"):
        strict.decoder()(short)
    with pytest.raises(WireError, match="the value of t-0 at offset 100"):
        strict.decoder()(torn)
    assert (rows_of(lax, short), rows_of(lax, torn)) == ([(None, "v")], [(None, None)])


@pytest.mark.slow
def test_older_versions_of_either_are_read_through_the_latest() -> None:
    versions = [
        key_value(("AVRO", json.dumps(RECORD)), ("AVRO", json.dumps(one)), version=at)
        for at, one in enumerate((RECORD, GROWN))
    ]
    schema = value_schema("t", versions, permissive=False)
    assert schema.by_version
    batch = batch_of([b"\x02", b"\x04"], [b"\x06", b"\x06\x08"], [0, 1])
    assert rows_of(schema, batch) == [({"n": 1}, {"n": 3, "m": 7}), ({"n": 2}, {"n": 3, "m": 4})]


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        ("BOOLEAN", b"\1", True),
        ("INT8", b"\xff", -1),
        ("INT16", pack(">h", -300), -300),
        ("INT32", pack(">i", 1 << 30), 1 << 30),
        ("INT64", pack(">q", -(1 << 62)), -(1 << 62)),
        ("FLOAT", pack(">f", 0.5), 0.5),
        ("DOUBLE", pack(">d", 0.1), 0.1),
        ("BYTES", b"abc", b"abc"),
        ("LOCAL_DATE", pack(">q", 1), date(1970, 1, 2)),
        ("TIMESTAMP", pack(">q", 1500), datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)),
        ("DATE", pack(">q", -1), datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)),
        ("INSTANT", pack(">qi", 2, 3000), datetime(1970, 1, 1, 0, 0, 2, 3, UTC)),
        ("LOCAL_DATE_TIME", pack(">qq", 1, 5000), datetime(1970, 1, 2, 0, 0, 0, 5)),  # noqa: DTZ001
    ],
)
def test_plain_values_are_what_pulsars_clients_write(kind: str, raw: bytes, value: object) -> None:
    schema = value_schema("t", [TopicSchema(0, kind, "")], permissive=True)
    batch = batch_of([None] * 4, [raw, None, raw, raw + b"\0"])
    found = schema.decoder()(batch).column("value")
    found.validate(full=True)
    assert found.to_pylist() == [value, None, value, b"abc\0" if kind == "BYTES" else None]


@pytest.mark.parametrize("kind", ["TIMESTAMP", "LOCAL_DATE"])
def test_a_moment_that_no_column_can_have_does_not_fit(kind: str) -> None:
    schema = value_schema("t", [TopicSchema(0, kind, "")], permissive=False)
    with pytest.raises(WireError, match="at offset 101"):
        schema.decoder()(batch_of([None] * 2, [pack(">q", 1), pack(">q", (1 << 63) - 1)]))


def test_what_is_no_schema_of_keys_and_values_is_said() -> None:
    with pytest.raises(WireError, match="no KEY_VALUE"):
        value_schema("t", [TopicSchema(0, "KEY_VALUE", "!")], permissive=False)
    with pytest.raises(ConfigError, match="TIME;"):
        value_schema("t", [key_value(("TIME", ""), ("STRING", ""))], permissive=False)
