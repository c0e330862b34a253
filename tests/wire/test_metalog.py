"""The embedded metadata store's files, as bytes."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import UnknownVersionError, WireError
from weir.testing.codecs.fuzzing import Codec, fuzz
from weir.wire.metadata_log import (
    HEADER_BYTES,
    LOG_MAGIC,
    SNAPSHOT_MAGIC,
    FileHeader,
    decode_header,
    decode_record,
    encode_header,
    encode_record,
    find_record,
)

u64 = st.integers(0, 2**64 - 1)


@given(st.text(), st.none() | st.binary(), u64, u64, u64, st.booleans(), st.binary(max_size=100))
def test_a_record_is_read_back_as_written_where_it_was_written(
    key: str, value: bytes | None, file_id: int, revision: int, durable: int, leased: bool, before: bytes
) -> None:
    encoded = encode_record(file_id, len(before), key, value, revision=revision, durable=durable, leased=leased)
    data = before + encoded + b"after"
    record = decode_record(data, len(before), file_id)
    assert record == (key, value, revision, durable, leased, len(before) + len(encoded))
    with pytest.raises(WireError):
        decode_record(b"x" + data, len(before) + 1, file_id)
    with pytest.raises(WireError):
        decode_record(data, len(before), file_id ^ 1)


@given(st.sampled_from([LOG_MAGIC, SNAPSHOT_MAGIC]), u64, u64, u64)
def test_a_header_is_read_back_as_written(magic: bytes, file_id: int, revision: int, records: int) -> None:
    header = FileHeader(file_id, revision, records)
    encoded = encode_header(magic, header)
    assert len(encoded) == HEADER_BYTES
    assert decode_header(magic, encoded) == header


def test_a_log_is_not_a_snapshot_and_a_later_format_is_named() -> None:
    header = encode_header(LOG_MAGIC, FileHeader(1, 2, 3))
    with pytest.raises(WireError):
        decode_header(SNAPSHOT_MAGIC, header)
    with pytest.raises(UnknownVersionError):
        decode_header(LOG_MAGIC, encode_header(b"WEIRml02", FileHeader(1, 2, 3)))


@given(st.sets(st.integers(0, HEADER_BYTES - 1), min_size=1, max_size=3), st.integers(1, 255))
def test_a_damaged_header_is_never_one_of_a_later_format(places: set[int], flipped: int) -> None:
    header = bytearray(encode_header(SNAPSHOT_MAGIC, FileHeader(1, 2, 3)))
    for place in places:
        header[place] ^= flipped
    with pytest.raises(WireError) as raised:
        decode_header(SNAPSHOT_MAGIC, header)
    assert not isinstance(raised.value, UnknownVersionError)


@given(st.binary(max_size=200), st.binary(max_size=50))
def test_the_next_record_is_found_behind_any_damage(damage: bytes, value: bytes) -> None:
    record = encode_record(5, len(damage), "/k", value, revision=9, durable=8)
    found = find_record(damage + record, 0, 5)
    assert found is not None
    assert found.revision == 9


def test_a_record_inside_a_value_is_not_taken_for_one_of_the_file() -> None:
    inner = encode_record(5, 0, "/inner", b"", revision=1, durable=0)
    outer = encode_record(5, 0, "/outer", inner, revision=2, durable=1)
    spoilt = b"\0" + outer[1:]
    assert find_record(spoilt, 0, 5) is None


def sample(dice: Random) -> bytes:
    data = encode_header(LOG_MAGIC, FileHeader(3, 1, 0))
    for n in range(3):
        data += encode_record(3, len(data), f"/k{n}", dice.randbytes(dice.randrange(20)), revision=n, durable=0)
    return data


def decode_all(data: bytes) -> None:
    offset = HEADER_BYTES
    header = decode_header(LOG_MAGIC, data)
    while offset < len(data):
        offset = decode_record(data, offset, header.file_id).end


def decode_records_only(data: bytes) -> None:
    find_record(data, 0, 3)
    decode_record(data, HEADER_BYTES, 3)


@pytest.mark.parametrize("decode", [decode_all, decode_records_only])
def test_damaged_bytes_raise_nothing_but_wire_errors(decode: object) -> None:
    codec = Codec("metadata log", sample, decode)  # type: ignore[arg-type]
    assert fuzz(codec, 10_000, Random("metalog")) > 1000
