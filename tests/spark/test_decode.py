"""Stored batches become the Arrow that the plain codec of records says, compiled or not."""

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from types import ModuleType

import pytest
from cramjam import gzip, lz4, snappy, zstd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weir.model.batch import Stamp
from weir.model.errors import ChecksumError, WireError
from weir.spark.columns import schema_of
from weir.spark.records import decoder as decode
from weir.spark.records import kernels
from weir.spark.records.decoder import BatchTable, Decoder, all_of, committed_of
from weir.testing.kinds import rounds
from weir.wire.kafka.record_batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Compression,
    parse_header,
    sealed,
    split_batches,
)
from weir.wire.kafka.records import Record, build_batch, control_batch, iter_records

COMPRESS = {
    Compression.NONE: bytes,
    Compression.GZIP: gzip.compress,
    Compression.SNAPPY: snappy.compress_raw,
    Compression.LZ4: lz4.compress,
    Compression.ZSTD: zstd.compress,
}


def known(moment_ms: int) -> int:
    """A time of 64 bits within the years 1 to 9999."""
    wrapped = (moment_ms + (1 << 63)) % (1 << 64) - (1 << 63)
    return min(max(wrapped, -62_135_596_800_000), 253_402_300_799_999)


def plain_kernels() -> ModuleType:
    """The loops as an installation without numba has them."""
    spec = importlib.util.find_spec("weir.spark.records.kernels")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    numba = sys.modules.get("numba")
    sys.modules["numba"] = None  # type: ignore[assignment]
    try:
        spec.loader.exec_module(module)
    finally:
        if numba is None:
            del sys.modules["numba"]
        else:
            sys.modules["numba"] = numba
    assert not module.COMPILED
    return module


@pytest.fixture(params=[pytest.param("compiled", marks=pytest.mark.slow), "plain"], autouse=True)
def loops(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "plain":
            patch.setattr(decode, "kernels", plain_kernels())
        else:
            assert kernels.COMPILED
        yield


def compressed(batch: bytes, kind: Compression) -> bytes:
    header = parse_header(batch)
    return sealed(
        bytes(COMPRESS[kind](batch[HEADER_BYTES:])),
        base_offset=header.base_offset,
        attributes=header.attributes | kind,
        last_offset_delta=header.last_offset_delta,
        times=(header.base_timestamp, header.max_timestamp),
        stamp=header.stamp or Stamp(-1, -1, -1),
        records=header.records,
    )


def arrow(data: bytes, first: int = 0, end: int = 1 << 62, *, headers: bool = True) -> list[dict[str, object]]:
    table = BatchTable(data)
    decoder = Decoder("orders", 3, headers=headers)
    found = list(decoder.decode(table, first, end, all_of(table)))
    for batch in found:
        batch.validate(full=True)
        assert batch.schema == decoder.schema
    return [row for batch in found for row in batch.to_pylist()]


def expected(data: bytes, first: int = 0, end: int = 1 << 62) -> list[dict[str, object]]:
    rows = []
    for batch in split_batches(data):
        header = parse_header(batch)
        if header.control:
            continue
        for record in iter_records(batch):
            offset = header.base_offset + record.offset_delta
            if first <= offset < end:
                row = {
                    "key": None if record.key is None else bytes(record.key),
                    "value": None if record.value is None else bytes(record.value),
                    "topic": "orders",
                    "partition": 3,
                    "offset": offset,
                    "timestamp": datetime(1970, 1, 1, tzinfo=UTC)
                    + timedelta(milliseconds=known(record.timestamp)),
                    "timestampType": int(header.log_append_time),
                    "headers": [
                        {"key": bytes(name).decode(errors="replace"), "value": None if v is None else bytes(v)}
                        for name, v in record.headers
                    ]
                    or None,
                }
                rows.append(row)
    return rows


some_bytes = st.binary(max_size=200)
maybe_bytes = st.none() | some_bytes
header_pairs = st.lists(
    st.tuples(st.text(max_size=5).map(str.encode) | st.binary(max_size=5), maybe_bytes), max_size=3
)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """Some batches one after the other, as a fetch gives them, with gaps as compaction leaves them."""
    found = []
    offset = draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(0, 4))):
        deltas = sorted(draw(st.sets(st.integers(0, 300), max_size=6)))
        times = st.integers(-1, 4_000_000_000_000)
        records = [
            Record(d, draw(times), draw(maybe_bytes), draw(maybe_bytes), draw(header_pairs)) for d in deltas
        ]
        last = (deltas[-1] if deltas else 0) + draw(st.integers(0, 3))
        batch = build_batch(
            records,
            base_offset=offset,
            last_offset_delta=last,
            attributes=draw(st.sampled_from([0, LOG_APPEND_TIME])),
        )
        found.append(compressed(batch, draw(st.sampled_from(Compression))))
        offset += last + 1 + draw(st.integers(0, 5))
    return b"".join(found)


@settings(max_examples=rounds(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=batches(), first=st.integers(0, 1 << 40), width=st.integers(0, 2000), cut=st.integers(0, 60))
def test_every_batch_decodes_as_the_plain_codec_reads_it(data: bytes, first: int, width: int, cut: int) -> None:
    assert arrow(data + data[:cut]) == expected(data)
    base = parse_header(data).base_offset if data else 0
    for begin in (first, base, base + width // 7):
        assert arrow(data, begin, begin + width) == expected(data, begin, begin + width)


@pytest.mark.slow
@settings(max_examples=rounds(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=batches(), at=st.integers(0, 1 << 30), byte=st.integers(0, 255))
def test_damage_is_an_error_or_what_the_plain_codec_reads(data: bytes, at: int, byte: int) -> None:
    if not data:
        return
    damaged = bytearray(data)
    damaged[at % len(data)] = byte
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_verify", lambda data, batch: None)  # or the checksum would find all of it
        try:
            found = arrow(bytes(damaged))
        except (WireError, OverflowError):
            return  # the latter: a time of more than 64 bits
    assert found == expected(bytes(damaged))


def test_a_damaged_batch_is_found_by_its_checksum() -> None:
    batch = bytearray(build_batch([Record(0, 1, b"k", b"value")]))
    batch[-3] ^= 1
    with pytest.raises(ChecksumError, match="offset 0"):
        arrow(bytes(batch))


def test_a_claim_of_many_records_takes_no_memory() -> None:
    batch = build_batch([Record(0, 1, b"k", b"value")])
    lying = sealed(
        batch[HEADER_BYTES:],
        base_offset=7,
        attributes=0,
        last_offset_delta=100_000,
        times=(1, 1),
        stamp=Stamp(-1, -1, -1),
        records=100_000,
    )
    with pytest.raises(WireError, match="more records"):
        arrow(lying)


def test_a_message_format_of_old_is_named() -> None:
    batch = bytearray(build_batch([Record(0, 1, b"k", b"value")]))
    batch[16] = 1
    with pytest.raises(WireError, match="format 1"):
        BatchTable(bytes(batch))


def test_the_next_offset_is_that_after_the_last_batch_even_where_records_are_gone() -> None:
    data = build_batch([Record(0, 1, None, b"a")], base_offset=10, last_offset_delta=4)
    assert BatchTable(data).next_offset == 15


@pytest.mark.parametrize(
    ("moment", "said"),
    [
        (1 << 62, datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
        (253_402_300_800_000, datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
        (-(1 << 62), datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_time_that_no_calendar_has_is_the_last_or_the_first_that_one_has(moment: int, said: datetime) -> None:
    data = build_batch([Record(0, moment, None, b"a")])
    table = BatchTable(data)
    (found,) = Decoder("t", 0).decode(table, 0, 1, all_of(table))
    assert found.column("timestamp").to_pylist() == [said]


def test_large_fetches_become_several_arrow_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_PIECE_BYTES", 300)
    data = b"".join(build_batch([Record(0, 1, None, b"x" * 100)], base_offset=at) for at in range(10))
    table = BatchTable(data)
    found = list(Decoder("t", 0).decode(table, 0, 10, all_of(table)))
    assert len(found) > 3
    assert [offset for batch in found for offset in batch.column("offset").to_pylist()] == list(range(10))


def transactional(offset: int, producer: int, *values: bytes) -> bytes:
    records = [Record(at, 1, None, one) for at, one in enumerate(values)]
    return build_batch(records, base_offset=offset, attributes=TRANSACTIONAL, stamp=Stamp(producer, 0, 0))


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    return offset.to_bytes(8, "big") + control_batch(producer, 0, commit, 1)[8:]


def committed(data: Sequence[bytes], aborted: Sequence[tuple[int, int]]) -> list[bytes]:
    table = BatchTable(b"".join(data))
    found = Decoder("t", 0).decode(table, 0, 1 << 62, committed_of(table, aborted))
    return [one for batch in found for one in batch.column("value").to_pylist()]


def test_what_was_aborted_is_left_out_and_what_follows_is_not() -> None:
    data = [
        transactional(0, 1, b"aborted-1", b"aborted-2"),
        transactional(2, 2, b"committed"),
        build_batch([Record(0, 1, None, b"plain")], base_offset=3),
        marker(4, 1, commit=False),
        marker(5, 2, commit=True),
        transactional(6, 1, b"second try"),
        marker(7, 1, commit=True),
        transactional(8, 1, b"third"),
        marker(9, 1, commit=False),
    ]
    assert committed(data, [(1, 8), (1, 0)]) == [b"committed", b"plain", b"second try"]
    assert committed(data, []) == [b"aborted-1", b"aborted-2", b"committed", b"plain", b"second try", b"third"]


def test_a_transaction_that_began_before_the_fetch_is_left_out_too() -> None:
    data = [transactional(5, 1, b"aborted"), marker(6, 1, commit=False), transactional(7, 1, b"good")]
    assert committed(data, [(1, 2)]) == [b"good"]


@pytest.mark.parametrize("headers", [False, True])
def test_the_columns_are_what_spark_expects(headers: bool) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    assert Decoder("t", 0, headers=headers).schema == to_arrow_schema(schema_of(headers=headers), timezone="UTC")
