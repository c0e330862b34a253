"""A message is sealed, cut and checked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import ChecksumError, WireError
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.message import (
    broker_entry_head,
    is_batch,
    message_key,
    parse_broker_entry,
    parse_metadata,
    seal_message,
    split_message,
    sticky_key,
)
from weir.wire.pulsar.proto import parse

METADATA = api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)


def sealed(metadata: api.MessageMetadata = METADATA, payload: bytes = b"payload") -> bytes:
    return b"".join(seal_message(metadata, payload))


@given(payload=st.binary(max_size=200), name=st.text(max_size=20))
def test_a_sealed_message_opens(payload: bytes, name: str) -> None:
    metadata = api.MessageMetadata(producer_name=name, sequence_id=2**64 - 1, publish_time=0)
    parts = split_message(memoryview(sealed(metadata, payload)))
    assert parse_metadata(parts) == metadata
    assert parts.payload == payload
    assert parts.checksum is not None
    assert parse_broker_entry(parts) is None


def test_every_flipped_bit_is_found() -> None:
    whole = sealed()
    for at in range(2, len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            with pytest.raises(ChecksumError):
                split_message(memoryview(flipped))


def test_the_checksum_is_left_alone_when_asked() -> None:
    flipped = bytearray(sealed())
    flipped[-1] ^= 1
    assert split_message(memoryview(flipped), verify=False).payload == b"payloae"


def test_a_message_of_an_old_client_has_no_checksum() -> None:
    parts = split_message(memoryview(sealed()[6:]))
    assert parts.checksum is None
    assert (parse_metadata(parts), parts.payload) == (METADATA, b"payload")


def test_broker_entry_metadata_goes_in_front_and_leaves_the_rest_as_it_was() -> None:
    whole = broker_entry_head(1_700_000_000_000, 41) + sealed()
    parts = split_message(memoryview(whole))
    entry = parse_broker_entry(parts)
    assert entry is not None
    assert (entry.broker_timestamp, entry.index) == (1_700_000_000_000, 41)
    assert (parse_metadata(parts), parts.payload) == (METADATA, b"payload")


@pytest.mark.parametrize("size", range(11))
def test_a_message_that_ends_early_is_a_wire_error(size: int) -> None:
    with pytest.raises(WireError):
        split_message(memoryview(sealed())[:size], verify=False)


def test_metadata_longer_than_its_message_is_a_wire_error() -> None:
    with pytest.raises(WireError):
        split_message(memoryview(b"\x0e\x01" + bytes(4) + b"\0\0\0\x09" + bytes(8)), verify=False)
    with pytest.raises(WireError):
        split_message(memoryview(b"\x0e\x02\0\0\0\x09" + bytes(8)))
    with pytest.raises(WireError):
        split_message(memoryview(broker_entry_head(1, 2) * 1000 + sealed()))


def test_a_batch_is_known_by_its_count_even_of_one() -> None:
    one = api.MessageMetadata(num_messages_in_batch=1)
    assert is_batch(one)
    assert not is_batch(METADATA)


def test_a_key_comes_as_text_as_base64_or_as_any_bytes() -> None:
    assert message_key(METADATA) is None
    assert message_key(api.MessageMetadata(partition_key="ké")) == "ké".encode()
    encoded = api.SingleMessageMetadata(partition_key="AP8=", partition_key_b64_encoded=True)
    assert message_key(encoded) == b"\x00\xff"
    raw = parse(api.SingleMessageMetadata, b"\x12\x02\xff\xfe\x18\x00")
    assert message_key(raw) == b"\xff\xfe"
    assert message_key(api.SingleMessageMetadata(partition_key="", null_partition_key=True)) is None
    with pytest.raises(WireError):
        message_key(api.SingleMessageMetadata(partition_key="*", partition_key_b64_encoded=True))


def test_the_ordering_key_goes_before_the_key() -> None:
    both = api.MessageMetadata(partition_key="k", ordering_key=b"o")
    assert (sticky_key(both), message_key(both)) == (b"o", b"k")
    assert sticky_key(api.MessageMetadata(partition_key="k")) == b"k"
