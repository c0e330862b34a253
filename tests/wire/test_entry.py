"""An entry's bytes describe and protect themselves."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import ChecksumError, FrameTooLargeError, WireError
from weir.wire.entry import (
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    OPENED,
    decode_entry,
    encode_entry,
    entry_key,
    entry_size,
    last_confirmed_of,
    verify_entry,
)
from weir.wire.kafka.record_batch import Compression as KafkaCompression
from weir.wire.kafka.records import Record, build_batch, iter_records
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.batch import Compression, compress, open_payload

u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)


@given(u64, u64, i64, u64, st.binary(max_size=200))
def test_an_entry_comes_back(ledger_id: int, entry_id: int, confirmed: int, length: int, payload: bytes) -> None:
    data = encode_entry(ledger_id, entry_id, confirmed, length, payload)
    assert decode_entry(data) == (ledger_id, entry_id, confirmed, length, payload)
    assert entry_size(data) == len(data) == HEADER_BYTES + len(payload)
    assert entry_key(data) == (ledger_id, entry_id)
    assert last_confirmed_of(data) == confirmed


@given(st.binary(max_size=20), st.binary(max_size=20), st.binary(max_size=20))
def test_an_entry_is_found_wherever_it_lies(before: bytes, payload: bytes, after: bytes) -> None:
    data = encode_entry(3, 4, 3, 9, payload)
    whole = before + data + after
    assert entry_size(whole, len(before)) == len(data)
    assert entry_key(whole, len(before)) == (3, 4)


def test_no_single_flipped_bit_goes_unseen() -> None:
    data = encode_entry(3, 4, 3, 9, b"payload")
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            verify_entry(bytes(flipped))


def test_a_flipped_payload_is_a_checksum_error() -> None:
    data = bytearray(encode_entry(3, 4, 3, 9, b"payload"))
    data[-1] ^= 1
    with pytest.raises(ChecksumError):
        decode_entry(data)


@given(st.integers(0, HEADER_BYTES + 6))
def test_a_part_of_an_entry_is_refused(kept: int) -> None:
    with pytest.raises(WireError):
        decode_entry(encode_entry(3, 4, 3, 9, b"payload")[:kept])


def test_an_entry_with_bytes_behind_it_is_refused() -> None:
    with pytest.raises(WireError):
        decode_entry(encode_entry(3, 4, 3, 9, b"payload") + b"\0")


def test_an_entry_that_announces_too_much_is_refused() -> None:
    header = bytearray(HEADER_BYTES)
    header[4:8] = (MAX_PAYLOAD_BYTES + 1).to_bytes(4, "little")
    with pytest.raises(FrameTooLargeError):
        entry_size(header)


@pytest.fixture
def opened_limit() -> Iterator[None]:
    before = OPENED.max_bytes
    yield
    OPENED.max_bytes = before


@pytest.mark.usefixtures("opened_limit")
def test_what_a_compressed_batch_may_have_when_it_is_opened_follows_the_largest_message() -> None:
    mib = 1024 * 1024
    for message_bytes, expected in (
        (mib, 64 * mib),
        (16 * mib, 64 * mib),
        (20 * mib, 80 * mib),
        (128 * mib, 129 * mib),
    ):
        OPENED.follow(message_bytes)
        assert OPENED.max_bytes == expected


@pytest.mark.usefixtures("opened_limit")
def test_batches_of_every_protocol_are_opened_up_to_the_limit() -> None:
    value = bytes(70 * 1024 * 1024)
    records = build_batch([Record(0, 0, None, value)], compression=KafkaCompression.ZSTD)
    metadata = api.MessageMetadata(compression=Compression.ZLIB, uncompressed_size=len(value))
    packed = compress(Compression.ZLIB, value)
    OPENED.follow(32 * 1024 * 1024)
    assert next(iter_records(records)).value == value
    assert open_payload(metadata, packed) == value
    OPENED.follow(16 * 1024 * 1024)
    with pytest.raises(FrameTooLargeError):
        next(iter_records(records))
    with pytest.raises(FrameTooLargeError):
        open_payload(metadata, packed)
